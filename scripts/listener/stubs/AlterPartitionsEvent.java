package org.apache.hadoop.hive.metastore.events;

import org.apache.hadoop.hive.metastore.IHMSHandler;

/** A class that the listener of 4.2 names and a server of 4.0 lacks. No server of 4.0 makes one. */
public class AlterPartitionsEvent extends ListenerEvent {
  public AlterPartitionsEvent(boolean status, IHMSHandler handler) {
    super(status, handler);
  }
}
