package org.apache.hadoop.hive.ql.exec;

import java.util.ArrayList;
import java.util.List;
import org.apache.hive.com.esotericsoftware.kryo.Kryo;
import org.apache.hive.com.esotericsoftware.kryo.Serializer;
import org.apache.hive.com.esotericsoftware.kryo.io.Input;
import org.apache.hive.com.esotericsoftware.kryo.io.Output;

/** In place of Hive 3.1's own, which reads a field that ArrayList.SubList has in Java 8 only. */
public class SerializationUtilities$ArrayListSubListSerializer extends Serializer<List<?>> {
    public List<?> read(Kryo kryo, Input input, Class<List<?>> type) {
        int size = input.readInt(true);
        List<Object> list = new ArrayList<>();
        for (int index = 0; index < size; index++) {
            list.add(kryo.readClassAndObject(input));
        }
        return list;
    }

    public void write(Kryo kryo, Output output, List<?> list) {
        output.writeInt(list.size(), true);
        for (Object each : list) {
            kryo.writeClassAndObject(output, each);
        }
    }
}
