//! What the system says about a process: its processor time and its memory.

use std::path::PathBuf;

use anyhow::Context;

/// The unit of times in `/proc`, on every machine that Linux runs on today.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// This one.
    This,
    /// That with this number.
    Other(u32),
}

/// Returns the number after a name in a file of lines such as `name: number`.
fn number_after(status: &str, name: &str) -> anyhow::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let line = line.with_context(|| format!("the status of a process says {name}"))?;
    line.trim().trim_end_matches(" kB").parse().with_context(|| format!("the number after {name}"))
}

impl Process {
    fn path(self, file: &str) -> PathBuf {
        match self {
            Self::This => format!("/proc/self/{file}").into(),
            Self::Other(number) => format!("/proc/{number}/{file}").into(),
        }
    }

    fn read(self, file: &str) -> anyhow::Result<String> {
        let path = self.path(file);
        let failed = || format!("{} cannot be read: Linux has it while the process runs", path.display());
        std::fs::read_to_string(&path).with_context(failed)
    }

    /// Returns the processor time of all threads so far.
    pub(crate) fn cpu_seconds(self) -> anyhow::Result<f64> {
        let stat = self.read("stat")?;
        // The name of the program is in parentheses and may have spaces. User and system time are fields 14 and 15.
        let (_, fields) = stat.rsplit_once(')').context("the name ends")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks = ticks.sum::<Result<u64, _>>().context("numbers of ticks")?;
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// Returns the most memory that the process had so far.
    pub(crate) fn peak_bytes(self) -> anyhow::Result<u64> {
        self.memory("VmHWM:")
    }

    /// Returns the memory that the process has.
    pub(crate) fn resident_bytes(self) -> anyhow::Result<u64> {
        self.memory("VmRSS:")
    }

    fn memory(self, name: &str) -> anyhow::Result<u64> {
        Ok(number_after(&self.read("status")?, name)? * 1024)
    }

    /// Returns how often the threads that the process has went to sleep so far: each time, something woke them later.
    pub(crate) fn sleeps(self) -> anyhow::Result<u64> {
        let threads = self.path("task");
        let failed = || format!("{} cannot be read: Linux has it while the process runs", threads.display());
        let mut sleeps = 0;
        for thread in std::fs::read_dir(&threads).with_context(failed)? {
            // A thread may end meanwhile.
            if let Ok(status) = std::fs::read_to_string(thread?.path().join("status")) {
                sleeps += number_after(&status, "voluntary_ctxt_switches:")?;
            }
        }
        Ok(sleeps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number() {
        let other = Process::Other(std::process::id());
        assert!(other.resident_bytes().unwrap() > 0);
        assert!(other.peak_bytes().unwrap() >= Process::This.resident_bytes().unwrap() / 2);
        assert!(other.cpu_seconds().unwrap() <= Process::This.cpu_seconds().unwrap());
    }

    #[test]
    fn a_thread_that_waits_goes_to_sleep() {
        let before = Process::This.sleeps().unwrap();
        // Both sides wait for each other in turns.
        let (question, questions) = std::sync::mpsc::sync_channel::<()>(0);
        let (answer, answers) = std::sync::mpsc::sync_channel::<()>(0);
        let answering = std::thread::spawn(move || {
            while questions.recv().is_ok() {
                answer.send(()).unwrap();
            }
        });
        for _ in 0..1000 {
            question.send(()).unwrap();
            answers.recv().unwrap();
        }
        assert!(Process::This.sleeps().unwrap() > before);
        drop(question);
        answering.join().unwrap();
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        let status =
            "Name:\tx\nVmRSS:\t  12 kB\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(number_after(status, "VmRSS:").unwrap(), 12);
        assert_eq!(number_after(status, "voluntary_ctxt_switches:").unwrap(), 7);
        assert!(number_after(status, "VmHWM:").unwrap_err().to_string().contains("VmHWM:"));
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let error = Process::Other(u32::MAX).cpu_seconds().unwrap_err().to_string();
        assert!(error.contains("/proc/4294967295/stat"), "{error}");
    }
}
