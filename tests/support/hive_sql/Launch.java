import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.List;

/** Runs HiveSql with the jars of the property hive.path: Hive 3.1 casts its own class loader to URLClassLoader. */
public class Launch {
    public static void main(String[] arguments) throws Exception {
        List<URL> jars = new ArrayList<>();
        for (String each : System.getProperty("hive.path").split(File.pathSeparator)) {
            jars.add(new File(each).toURI().toURL());
        }
        URLClassLoader loader =
                new URLClassLoader(jars.toArray(new URL[0]), ClassLoader.getPlatformClassLoader());
        Thread.currentThread().setContextClassLoader(loader);
        loader.loadClass("HiveSql").getMethod("main", String[].class).invoke(null, (Object) arguments);
    }
}
