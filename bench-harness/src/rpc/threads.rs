//! Which thread limits a load: how long the threads of service and load ran.
//!
//! A thread that has a processor all the time is full. So is one that has none although it could go on: then the cores are
//! the limit. Both are counted by the system.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::row::rounded;
use crate::process::{Process, Thread};

/// The threads of a process, with their times over some span.
#[derive(Clone, Debug, Default)]
pub(super) struct Threads(BTreeMap<u32, Thread>);

impl Threads {
    /// Returns the threads of a process, with their times so far.
    pub(super) fn of(process: Process) -> anyhow::Result<Self> {
        Ok(Self(process.threads()?.into_iter().map(|thread| (thread.number, thread)).collect()))
    }

    /// Returns the times since `before`. A thread that began since has all of its time.
    pub(super) fn since(mut self, before: &Self) -> Self {
        for (number, thread) in &mut self.0 {
            let Some(earlier) = before.0.get(number).filter(|earlier| earlier.name == thread.name) else {
                continue;
            };
            thread.ran = (thread.ran - earlier.ran).max(0.0);
            let waited = thread.waited.zip(earlier.waited);
            thread.waited = waited.map(|(waited, earlier)| (waited - earlier).max(0.0));
        }
        self
    }

    /// Adds the times of another span.
    pub(super) fn add(&mut self, other: &Self) {
        for (number, thread) in &other.0 {
            match self.0.get_mut(number).filter(|own| own.name == thread.name) {
                Some(own) => {
                    own.ran += thread.ran;
                    own.waited = own.waited.zip(thread.waited).map(|(own, waited)| own + waited);
                }
                None => drop(self.0.insert(*number, thread.clone())),
            }
        }
    }

    /// Returns the processor time of all threads, in seconds.
    fn ran(&self) -> f64 {
        self.0.values().map(|thread| thread.ran).sum()
    }

    /// Returns what the threads did that belong to a group. `None` if there are none.
    fn busy(&self, elapsed: Duration, is_one: impl Fn(&str) -> bool) -> Option<Busy> {
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let of_core = |time: f64| rounded(100.0 * time / seconds, 1);
        let group: Vec<&Thread> = self.0.values().filter(|thread| is_one(&thread.name)).collect();
        let wanted = |thread: &Thread| thread.ran + thread.waited.unwrap_or(0.0);
        let fullest = group.iter().max_by(|one, next| wanted(one).total_cmp(&wanted(next)))?;
        Some(Busy {
            threads: group.len(),
            busy_percent: of_core(fullest.ran),
            waiting_percent: fullest.waited.map(of_core),
            all_percent: of_core(group.iter().map(|thread| thread.ran).sum()),
        })
    }
}

/// What the threads of a group did. Times are in percent of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Busy {
    /// The number of threads.
    pub threads: usize,
    /// The time for which the fullest one had a processor.
    pub busy_percent: f64,
    /// The time for which this one could go on and had no processor. `None` if the system does not say.
    pub waiting_percent: Option<f64>,
    /// The time for which all of them together had one.
    pub all_percent: f64,
}

impl Busy {
    /// Returns the time in which the fullest thread did not sleep.
    fn awake_percent(&self) -> f64 {
        self.busy_percent + self.waiting_percent.unwrap_or(0.0)
    }
}

/// The threads of a service by what they do: one of the groups below, or `others`. `None`: the service has no such threads.
pub type ServiceThreads = BTreeMap<&'static str, Option<Busy>>;

/// The groups, with the beginnings of their threads' names as the system keeps them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("io", &["wharf-io-"]),
    ("shards", &["wharf-shard-"]),
    ("journal", &["wharf-journal"]),
    ("checkpoints", &["wharf-checkpoin"]),
    ("planners", &["wharf-plan", "wharf-jobs"]),
    ("registrar", &["wharf-registrar"]),
];

/// The group of all other threads.
const OTHERS: &str = "others";

fn by_group(threads: &Threads, elapsed: Duration) -> ServiceThreads {
    let group_of = |name: &str| {
        let is_in = |(_, begins): &&(&str, &[&str])| begins.iter().any(|begin| name.starts_with(begin));
        GROUPS.iter().find(is_in).map_or(OTHERS, |&(group, _)| group)
    };
    let groups = GROUPS.iter().map(|&(group, _)| group).chain([OTHERS]);
    groups.map(|group| (group, threads.busy(elapsed, |name| group_of(name) == group))).collect()
}

/// What the threads of service and load did, and which of them was the fullest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// The threads of the service.
    pub service_threads: ServiceThreads,
    /// The threads of the load, and of this process.
    pub load_threads: Option<Busy>,
    /// The group with the thread that slept the least: `load`, or a group of the service.
    pub fullest: &'static str,
    /// The time for which this thread had a processor, in percent of one core.
    pub fullest_busy_percent: f64,
    /// The time for which it could go on and had no processor, in percent.
    pub fullest_waiting_percent: Option<f64>,
    /// The processor time of service and load, in percent of all cores of this machine.
    pub cores_percent: f64,
}

impl Limits {
    /// Returns what the threads of a service and of its load did during a measurement.
    pub(super) fn of(service: &Threads, load: &Threads, elapsed: Duration) -> Self {
        let service_threads = by_group(service, elapsed);
        let load_threads = load.busy(elapsed, |_| true);
        let of_service = service_threads.iter().map(|(&name, &busy)| (name, busy));
        let groups =
            of_service.chain([("load", load_threads)]).filter_map(|(name, busy)| Some((name, busy?)));
        let fullest =
            groups.max_by(|(_, one), (_, next)| one.awake_percent().total_cmp(&next.awake_percent()));
        let (fullest, busy) = fullest.unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        Self {
            service_threads,
            load_threads,
            fullest,
            fullest_busy_percent: busy.busy_percent,
            fullest_waiting_percent: busy.waiting_percent,
            cores_percent: rounded(100.0 * (service.ran() + load.ran()) / (seconds * cores), 1),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fullest, fullest_busy_percent: busy, cores_percent: cores, .. } = self;
        match self.fullest_waiting_percent {
            Some(waiting) => write!(f, "{fullest} {busy:.0} + {waiting:.0} %, cores {cores:.0} %"),
            None => write!(f, "{fullest} {busy:.0} %, cores {cores:.0} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(of: &[(u32, &str, f64, Option<f64>)]) -> Threads {
        let thread = |&(number, name, ran, waited): &(u32, &str, f64, Option<f64>)| {
            (number, Thread { number, name: name.to_owned(), ran, waited })
        };
        Threads(of.iter().map(thread).collect())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn times_are_those_between_two_looks() {
        let before = threads(&[(1, "wharf-io-0", 5.0, Some(1.0)), (2, "gone", 1.0, None)]);
        let after = [
            (1, "wharf-io-0", 5.5, Some(1.25)),
            (2, "another", 0.25, None),
            (3, "wharf-shard-0", 0.125, Some(0.0)),
        ];
        let mut both = threads(&after).since(&before);
        let ran: Vec<f64> = both.0.values().map(|thread| thread.ran).collect();
        assert_eq!(ran, [0.5, 0.25, 0.125], "a number that another thread has got counts from its begin");
        both.add(&both.clone());
        let busy = both.busy(2 * SECOND, |name| name == "wharf-io-0");
        let expected =
            Busy { threads: 1, busy_percent: 50.0, waiting_percent: Some(25.0), all_percent: 50.0 };
        assert_eq!(busy, Some(expected));
    }

    #[test]
    fn the_fullest_thread_is_the_one_that_sleeps_least() {
        let service = threads(&[
            (1, "wharf-io-0", 0.5, Some(0.0)),
            (2, "wharf-io-1", 0.2, Some(0.5)),
            (3, "wharf-shard-0", 0.6, Some(0.0)),
            (4, "wharf-jobs", 0.1, Some(0.0)),
            (5, "wharf-plan", 0.2, Some(0.0)),
            (6, "wharf-bench", 0.0, Some(0.0)),
        ]);
        let limits = Limits::of(&service, &threads(&[(9, "wharf-bench", 0.4, Some(0.1))]), SECOND);
        let of = |group: &str| limits.service_threads[group];
        let io = Busy { threads: 2, busy_percent: 20.0, waiting_percent: Some(50.0), all_percent: 70.0 };
        assert_eq!((of("io"), of("journal")), (Some(io), None));
        assert_eq!(of("planners").map(|busy| (busy.threads, busy.busy_percent)), Some((2, 20.0)));
        assert_eq!(of("others").map(|busy| busy.threads), Some(1));
        assert_eq!((limits.fullest, limits.fullest_busy_percent), ("io", 20.0));
        assert!(limits.to_string().starts_with("io 20 + 50 %"), "{limits}");
    }

    #[test]
    fn a_load_can_be_the_limit_and_a_system_may_not_say_who_waits() {
        let limits = Limits::of(
            &threads(&[(1, "wharf-shard-0", 0.9, None)]),
            &threads(&[(2, "load", 0.95, None)]),
            SECOND,
        );
        assert_eq!((limits.fullest, limits.fullest_waiting_percent), ("load", None));
        assert!(limits.to_string().starts_with("load 95 %,"), "{limits}");
    }
}
