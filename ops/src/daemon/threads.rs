//! Starting, pinning and joining threads.

use std::thread::JoinHandle;

use core_affinity::CoreId;
use tracing::{info, warn};
use wharf_core::demand::NodesPlanner;
use wharf_core::ids::ShardId;
use wharf_core::link::StopSignal;

use super::DaemonError;

/// The core that each shard is pinned to.
pub(super) struct Pinning {
    cores: Vec<CoreId>,
}

impl Pinning {
    /// Assigns cores to shards. With enough cores, the first ones are left to the I/O threads. With fewer
    /// cores than shards, nothing is pinned.
    pub(super) fn plan(pin: bool, io_threads: u16, shards: u16) -> Self {
        if !pin {
            return Self { cores: Vec::new() };
        }
        Self::over(core_affinity::get_core_ids().unwrap_or_default(), io_threads, shards)
    }

    fn over(mut cores: Vec<CoreId>, io_threads: u16, shards: u16) -> Self {
        if cores.is_empty() {
            warn!("the cores of this machine are not known: shard threads are not pinned");
        } else if cores.len() < usize::from(shards) {
            info!(cores = cores.len(), shards, "more shards than cores: shard threads are not pinned");
            cores.clear();
        } else {
            let first = usize::from(io_threads).min(cores.len() - usize::from(shards));
            cores.rotate_left(first);
            cores.truncate(usize::from(shards));
        }
        Self { cores }
    }

    pub(super) fn core(&self, shard: ShardId) -> Option<CoreId> {
        self.cores.get(shard.index()).copied()
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

    /// Returns the core of each shard on a machine with `cores` cores.
    fn plan(cores: usize, io_threads: u16, shards: u16) -> Vec<Option<usize>> {
        let pinning = Pinning::over((0..cores).map(|id| CoreId { id }).collect(), io_threads, shards);
        (0..shards).map(|shard| pinning.core(ShardId(shard)).map(|core| core.id)).collect()
    }

    #[test]
    fn shards_get_the_cores_after_those_of_the_io_threads() {
        assert_eq!(plan(8, 1, 3), [Some(1), Some(2), Some(3)]);
        assert_eq!(plan(8, 2, 6), [2, 3, 4, 5, 6, 7].map(Some));
    }

    #[test]
    fn where_cores_are_few_io_threads_share_them_and_shards_do_not() {
        assert_eq!(plan(4, 2, 3), [Some(1), Some(2), Some(3)]);
        assert_eq!(plan(2, 5, 2), [Some(0), Some(1)]);
        assert_eq!(plan(2, 1, 3), [None; 3]);
        assert_eq!(plan(0, 1, 2), [None; 2]);
    }

    #[test]
    fn pinning_that_is_turned_off_pins_nothing() {
        assert_eq!(Pinning::plan(false, 1, 1).core(ShardId(0)), None);
    }

    #[test]
    fn a_core_that_is_not_there_is_no_failure() {
        // The highest core that the system call can name.
        pin(Some(CoreId { id: 1023 }));
    }
}
