import org.apache.hadoop.hive.ql.hooks.ExecuteWithHookContext;
import org.apache.hadoop.hive.ql.hooks.HookContext;

/** A writer that ends after its files are in place, and before its transaction commits: hive.exec.post.hooks=Halt. */
public class Halt implements ExecuteWithHookContext {
    public void run(HookContext context) {
        Runtime.getRuntime().halt(9);
    }
}
