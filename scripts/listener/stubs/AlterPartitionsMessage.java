package org.apache.hadoop.hive.metastore.messaging;

/** A class that the listener of 4.2 names and a server of 4.0 lacks. No server of 4.0 makes one. */
public abstract class AlterPartitionsMessage extends EventMessage {
  protected AlterPartitionsMessage() {
    super(EventType.ALTER_PARTITION);
  }
}
