//! Starting, pinning and joining threads.

use std::thread::{JoinHandle, ScopedJoinHandle};

use core_affinity::CoreId;
use tracing::{info, warn};
use wharf_core::broken::Broken;
use wharf_core::demand::NodesPlanner;
use wharf_core::engine::{OpenedShard, UnopenedShard};
use wharf_core::ids::ShardId;
use wharf_core::link::StopSignal;

use super::DaemonError;

/// The cores that I/O threads and shards are pinned to.
#[derive(Default)]
pub(super) struct Pinning {
    io: Vec<CoreId>,
    shards: Vec<CoreId>,
}

impl Pinning {
    /// Assigns cores. With a core for each I/O thread and each shard, the I/O threads get the first ones. With fewer, only
    /// shards are pinned, and as many cores as possible are left to the I/O threads. With fewer cores than shards, nothing
    /// is pinned.
    pub(super) fn plan(pin: bool, io_threads: u16, shards: u16) -> Self {
        if !pin {
            return Self::default();
        }
        Self::over(core_affinity::get_core_ids().unwrap_or_default(), io_threads, shards)
    }

    fn over(mut io: Vec<CoreId>, io_threads: u16, shards: u16) -> Self {
        if io.is_empty() {
            warn!("the cores of this machine are not known: threads are not pinned");
            return Self::default();
        }
        let Some(left) = io.len().checked_sub(shards.into()) else {
            info!(cores = io.len(), shards, "more shards than cores: threads are not pinned");
            return Self::default();
        };
        let mut shard_cores = io.split_off(left.min(io_threads.into()));
        shard_cores.truncate(shards.into());
        if left < usize::from(io_threads) {
            // Pinned to cores of their own or not at all: several on one core would wait for each other.
            io.clear();
        }
        Self { io, shards: shard_cores }
    }

    /// Returns the core of an I/O thread.
    pub(super) fn io_core(&self, number: usize) -> Option<CoreId> {
        self.io.get(number).copied()
    }

    /// Returns the core of a shard.
    pub(super) fn shard_core(&self, shard: ShardId) -> Option<CoreId> {
        self.shards.get(shard.index()).copied()
    }
}

/// Pins the calling thread. A failure is logged, and the thread continues unpinned.
pub(super) fn pin(core: Option<CoreId>) {
    if let Some(core) = core
        && !core_affinity::set_for_current(core)
    {
        warn!(core = core.id, "this thread cannot be pinned to its core: it goes on unpinned");
    }
}

/// Starts a thread.
pub(super) fn start<R: Send + 'static>(
    name: String,
    body: impl FnOnce() -> R + Send + 'static,
) -> Result<JoinHandle<R>, DaemonError> {
    let thread = std::thread::Builder::new().name(name.clone());
    thread.spawn(body).map_err(|error| DaemonError::Thread { name, error })
}

/// Runs `work` on each item, each on a thread that is pinned to the item's core if it has one. Returns the results in the
/// order of the items.
///
/// # Panics
/// When `work` panics.
fn each_on_its_core<T: Send, R: Send>(
    name: &str,
    items: Vec<T>,
    core: impl Fn(&T) -> Option<CoreId>,
    work: impl Fn(T) -> R + Sync,
) -> Result<Vec<R>, DaemonError> {
    let work = &work;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for item in items {
            let core = core(&item);
            let pinned = move || {
                pin(core);
                work(item)
            };
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, pinned);
            threads.push(thread.map_err(|error| DaemonError::Thread { name: name.to_owned(), error })?);
        }
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        Ok(joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect())
    })
}

/// Opens and checks each shard on the core that will run it: with several memory nodes, its memory is near this core.
pub(super) fn open_shards(
    pinning: &Pinning,
    shards: Vec<UnopenedShard>,
) -> Result<Vec<OpenedShard>, DaemonError> {
    let core = |shard: &UnopenedShard| pinning.shard_core(shard.id());
    let opened = each_on_its_core("wharf-open", shards, core, |shard| {
        let opened = shard.open();
        opened.shard().check_invariants()?;
        Ok::<_, Broken>(opened)
    })?;
    Ok(opened.into_iter().collect::<Result<_, _>>()?)
}

/// Starts the thread that plans nodes. Returns what stops it.
pub(super) fn start_nodes_planner(
    planner: NodesPlanner,
) -> Result<(StopSignal, JoinHandle<()>), DaemonError> {
    let stop = planner.stop_signal();
    Ok((stop, start("wharf-plan".to_owned(), move || planner.run())?))
}

/// Waits for a thread without blocking the runtime.
pub(super) async fn join<R: Send + 'static>(name: String, thread: JoinHandle<R>) -> Result<R, DaemonError> {
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) | Err(_) => Err(DaemonError::Panicked(name)),
    }
}

/// Creates a single-threaded runtime for the calling thread.
///
/// # Panics
/// When the operating system provides no event queue.
pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the operating system gives an event queue")
}

/// Returns the resident memory of this process in bytes; 0 if unknown.
pub(super) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cores of the I/O threads and of the shards on a machine with `cores` cores.
    fn plan(cores: usize, io_threads: u16, shards: u16) -> [Vec<Option<usize>>; 2] {
        let pinning = Pinning::over((0..cores).map(|id| CoreId { id }).collect(), io_threads, shards);
        let io = (0..usize::from(io_threads)).map(|number| pinning.io_core(number));
        let of_shards = (0..shards).map(|shard| pinning.shard_core(ShardId(shard)));
        let ids =
            |cores: Vec<Option<CoreId>>| cores.into_iter().map(|core| core.map(|core| core.id)).collect();
        [ids(io.collect()), ids(of_shards.collect())]
    }

    #[test]
    fn io_threads_get_the_first_cores_and_shards_those_after_them() {
        assert_eq!(plan(8, 1, 3), [vec![Some(0)], vec![Some(1), Some(2), Some(3)]]);
        assert_eq!(plan(8, 2, 6), [[0, 1].map(Some).to_vec(), [2, 3, 4, 5, 6, 7].map(Some).to_vec()]);
    }

    #[test]
    fn where_cores_are_few_io_threads_are_not_pinned_and_shards_share_none() {
        assert_eq!(plan(4, 2, 3), [vec![None; 2], vec![Some(1), Some(2), Some(3)]]);
        assert_eq!(plan(2, 5, 2), [vec![None; 5], vec![Some(0), Some(1)]]);
        assert_eq!(plan(2, 1, 3), [vec![None], vec![None; 3]]);
        assert_eq!(plan(0, 1, 2), [vec![None], vec![None; 2]]);
    }

    #[test]
    fn pinning_that_is_turned_off_pins_nothing() {
        let pinning = Pinning::plan(false, 1, 1);
        assert_eq!((pinning.io_core(0), pinning.shard_core(ShardId(0))), (None, None));
    }

    #[test]
    fn each_item_is_worked_on_where_it_belongs() {
        let cores = core_affinity::get_core_ids().expect("the cores of this machine are known");
        let here = std::thread::current().id();
        // A pinned thread sees no other core than its own.
        let sees = |core: CoreId| (core, core_affinity::get_core_ids(), std::thread::current().id());
        let seen = each_on_its_core("test", cores.clone(), |&core| Some(core), sees).unwrap();
        assert_eq!(seen.len(), cores.len());
        for ((core, sees, thread), wanted) in seen.into_iter().zip(cores) {
            assert_eq!((core, sees), (wanted, Some(vec![wanted])));
            assert_ne!(thread, here);
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_no_failure() {
        // The highest core that the system call can name.
        pin(Some(CoreId { id: 1023 }));
    }
}
