"""The sample configurations of Apache Gobblin's retention guide (Apache License 2.0), as users copied them."""

from __future__ import annotations

TAG = """
gobblin.retention : {

    ##Alias
    TimeBasedSelectionPolicy=gobblin.data.management.policy.SelectBeforeTimeBasedPolicy
    DateTimeDatasetVersionFinder=gobblin.data.management.version.finder.DateTimeDatasetVersionFinder

    dataset : {
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
      partitions=[${gobblin.retention.daily}
    }

    daily : {
      selection {
        policy.class = ${gobblin.retention.TimeBasedSelectionPolicy}
        timeBased.lookbackTime=1000d
      }
      version : {
        finder.class=${gobblin.retention.DateTimeDatasetVersionFinder}
        globPattern = "daily/*/*/*"
        datetime.pattern = "yyyy/MM/dd"
      }
    }
}
"""

EVENTS_INCLUDES = """###### Include files for /data/events ######
tags/retention/timeBased
"""

EVENTS_MAIN = """##### Common configs for all of /data/events ######
# Glob pattern to use to find datasets
gobblin.dataset.pattern = "/data/events/*"
"""

LOGIN_EVENT = """
gobblin.retention : {
    daily : {
      selection {
        timeBased.lookbackTime=1d
      }
    }
}
"""

TIME_BASED = """
gobblin.retention : {

    dataset : {
      pattern="/user/gobblin/*"
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
    }

    selection : {
      policy.class=gobblin.data.management.policy.SelectBeforeTimeBasedPolicy
      timeBased.lookbackTime=7d
    }

    version : {
      finder.class=gobblin.data.management.version.finder.GlobModTimeDatasetVersionFinder
    }
}
"""

NEWEST_K = """
gobblin.retention : {

    dataset : {
      pattern="/user/gobblin/*"
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
    }

    selection : {
      policy.class=gobblin.data.management.policy.NewestKSelectionPolicy
      newestK.versionsNotSelected=2
    }

    version : {
      finder.class=gobblin.data.management.version.finder.GlobModTimeDatasetVersionFinder
    }
}
"""

COMBINED = """
gobblin.retention : {

    dataset : {
      pattern="/user/gobblin/snapshots/*/*"
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
    }

    selection : {
      policy.class=gobblin.data.management.policy.CombineSelectionPolicy
      combine.operation=INTERSECT
      combine.policy.classes=[
        gobblin.data.management.policy.SelectBeforeTimeBasedPolicy,
        gobblin.data.management.policy.NewestKSelectionPolicy
      ]
      timeBased.lookbackTime=3d
      newestK.versionsNotSelected=2

    }

    version : {
      finder.class=gobblin.data.management.version.finder.GlobModTimeDatasetVersionFinder
    }
}
"""

SEVERAL_KINDS = """
gobblin.retention : {

    TimeBasedSelectionPolicy=gobblin.data.management.policy.SelectBeforeTimeBasedPolicy
    DateTimeDatasetVersionFinder=gobblin.data.management.version.finder.DateTimeDatasetVersionFinder

    dataset : {
      pattern="/user/gobblin/data/*"
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
      partitions=[${gobblin.retention.hourly}, ${gobblin.retention.daily}]
    }

    daily : {
      selection {
        policy.class = ${gobblin.retention.TimeBasedSelectionPolicy}
        timeBased.lookbackTime = 5d
      }
      version : {
        finder.class=${gobblin.retention.DateTimeDatasetVersionFinder}
        globPattern = "daily/*/*/*"
        datetime.pattern = "yyyy/MM/dd"
      }
    }

    hourly : {
      selection {
        policy.class = ${gobblin.retention.TimeBasedSelectionPolicy}
        timeBased.lookbackTime = 2d
      }
      version : {
        finder.class=${gobblin.retention.DateTimeDatasetVersionFinder}
        globPattern = "hourly/*/*/*/*"
        datetime.pattern = "yyyy/MM/dd/hh"
      }
  }
}

"""

HIVE = """

gobblin.retention : {

    is.blacklisted=false

    dataset : {
      finder.class=gobblin.data.management.retention.dataset.finder.CleanableHiveDatasetFinder
    }

    selection : {
      policy.class=gobblin.data.management.policy.SelectBeforeTimeBasedPolicy

      ## Partitions older than 3 days will be deleted
      timeBased.lookbackTime=3d
    }

    version.finder.class=gobblin.data.management.version.finder.DatePartitionHiveVersionFinder

    hive {
      partition {
        key.name=datepartition
        value.datetime.pattern=yyyy-MM-dd-HH
      }
    }
}

"""

HIVE_JOB = "gobblin.retention.hive.shouldDeleteData=false\n"
