//! What the system says about a process: its processor time and its memory.

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

impl Process {
    fn read(self, file: &str) -> anyhow::Result<String> {
        let path = match self {
            Self::This => format!("/proc/self/{file}"),
            Self::Other(number) => format!("/proc/{number}/{file}"),
        };
        std::fs::read_to_string(&path)
            .with_context(|| format!("{path} cannot be read: Linux has it while the process runs"))
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

    fn memory(self, what: &str) -> anyhow::Result<u64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let line = line.with_context(|| format!("the status of a process says {what}"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("a number of KiB")?;
        Ok(kib * 1024)
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
    fn a_process_that_is_gone_is_named() {
        let error = Process::Other(u32::MAX).cpu_seconds().unwrap_err().to_string();
        assert!(error.contains("/proc/4294967295/stat"), "{error}");
    }
}
