package replicator;

import java.lang.reflect.Method;
import java.sql.Connection;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.api.MetaException;
import org.apache.hadoop.hive.metastore.api.NotificationEvent;
import org.apache.hadoop.hive.metastore.api.TxnType;
import org.apache.hadoop.hive.metastore.events.AbortTxnEvent;
import org.apache.hadoop.hive.metastore.events.CommitTxnEvent;
import org.apache.hadoop.hive.metastore.events.ListenerEvent;
import org.apache.hadoop.hive.metastore.messaging.EventMessage;
import org.apache.hadoop.hive.metastore.messaging.MessageBuilder;
import org.apache.hadoop.hive.metastore.messaging.MessageEncoder;
import org.apache.hadoop.hive.metastore.messaging.MessageFactory;
import org.apache.hadoop.hive.metastore.tools.SQLGenerator;
import org.apache.hive.hcatalog.listener.DbNotificationListener;

/**
 * The notification listener of Hive 4.2 for a server of Hive 4.0, of which no listener is published: the ends of
 * transactions have messages of 4.0.
 */
public class DbNotificationListener40 extends DbNotificationListener {
  private final MessageEncoder encoder;

  public DbNotificationListener40(Configuration conf) throws MetaException {
    super(conf);
    encoder = MessageFactory.getDefaultInstance(conf);
  }

  @Override
  public void onCommitTxn(CommitTxnEvent txn, Connection connection, SQLGenerator sql) throws MetaException {
    if (txn.getTxnType() != TxnType.READ_ONLY) {
      write("COMMIT_TXN", MessageBuilder.getInstance().buildCommitTxnMessage(txn.getTxnId()), txn, connection, sql);
    }
  }

  @Override
  public void onAbortTxn(AbortTxnEvent txn, Connection connection, SQLGenerator sql) throws MetaException {
    if (txn.getTxnType() != TxnType.READ_ONLY) {
      EventMessage message = MessageBuilder.getInstance().buildAbortTxnMessage(txn.getTxnId(), txn.getDbsUpdated());
      write("ABORT_TXN", message, txn, connection, sql);
    }
  }

  private void write(String type, EventMessage message, ListenerEvent cause, Connection connection, SQLGenerator sql)
      throws MetaException {
    int now = (int) (System.currentTimeMillis() / 1000);
    NotificationEvent event = new NotificationEvent(0, now, type, encoder.getSerializer().serialize(message));
    event.setMessageFormat(encoder.getMessageFormat());
    try {
      Method add = DbNotificationListener.class.getDeclaredMethod(
          "addNotificationLog", NotificationEvent.class, ListenerEvent.class, Connection.class, SQLGenerator.class);
      add.setAccessible(true);
      add.invoke(this, event, cause, connection, sql);
    } catch (ReflectiveOperationException error) {
      throw new MetaException(type + ": " + error + " " + error.getCause());
    }
  }
}
