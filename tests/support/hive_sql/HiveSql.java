import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.ql.DriverFactory;
import org.apache.hadoop.hive.ql.IDriver;
import org.apache.hadoop.hive.ql.session.SessionState;

/** Hive in one JVM. Arguments: key=value settings. Each line of the input is a statement, or `set key=value`; it is
 * answered by lines of "row" and a tab, and one of "end", or "fail" and the reason. */
public class HiveSql {
    public static void main(String[] settings) throws Exception {
        HiveConf conf = new HiveConf(SessionState.class);
        for (String each : settings) {
            set(conf, each);
        }
        SessionState.start(conf);
        Scanner input = new Scanner(System.in, "UTF-8");
        while (input.hasNextLine()) {
            String statement = input.nextLine();
            if (statement.startsWith("set ")) {
                set(conf, statement.substring(4));
                System.out.println("end");
            } else {
                run(conf, statement);
            }
            System.out.flush();
        }
        System.exit(0);
    }

    private static void set(HiveConf conf, String setting) {
        String[] parts = setting.split("=", 2);
        conf.set(parts[0], parts[1]);
    }

    private static void run(HiveConf conf, String statement) {
        IDriver driver = DriverFactory.newDriver(conf);
        try {
            Object answer = driver.run(statement);
            if (code(answer) != 0) {
                System.out.println("fail\t" + String.valueOf(answer).replace('\n', ' '));
                return;
            }
            List<Object> rows = new ArrayList<>();
            while (driver.getResults(rows)) {
                for (Object row : rows) {
                    System.out.println("row\t" + row);
                }
                rows.clear();
            }
            System.out.println("end");
        } catch (Throwable error) {
            System.out.println("fail\t" + String.valueOf(error).replace('\n', ' '));
        } finally {
            driver.close();
            driver.destroy();
        }
    }

    /** Hive 3 answers with a code, Hive 4 throws. */
    private static int code(Object answer) throws Exception {
        try {
            return (Integer) answer.getClass().getMethod("getResponseCode").invoke(answer);
        } catch (NoSuchMethodException error) {
            return 0;
        }
    }
}
