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

/// A thread, and its times so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thread {
    /// Its number. Another thread may get it later.
    pub(crate) number: u32,
    /// The first 15 bytes of its name.
    pub(crate) name: String,
    /// The time for which it had a processor, in seconds.
    pub(crate) ran: f64,
    /// The time for which it could go on and had none, in seconds. `None` if the system does not say.
    pub(crate) waited: Option<f64>,
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
        cpu_seconds(&self.read("stat")?)
    }

    /// Returns the processor time so far of the threads whose names begin with `prefix`, and their number.
    pub(crate) fn cpu_seconds_of(self, prefix: &str) -> anyhow::Result<(f64, usize)> {
        let threads = self.threads()?;
        let of_prefix = threads.iter().filter(|thread| thread.name.starts_with(prefix));
        Ok((of_prefix.clone().map(|thread| thread.ran).sum(), of_prefix.count()))
    }

    /// Returns the threads that the process has.
    pub(crate) fn threads(self) -> anyhow::Result<Vec<Thread>> {
        let mut threads = Vec::new();
        for (number, directory) in self.thread_directories()? {
            // A thread may end meanwhile.
            let Ok(stat) = std::fs::read_to_string(directory.join("stat")) else { continue };
            let times = std::fs::read_to_string(directory.join("schedstat")).ok();
            threads.push(thread(number, &stat, times.as_deref())?);
        }
        Ok(threads)
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
        // A thread may end meanwhile.
        let directories = self.thread_directories()?.into_iter();
        let statuses = directories.filter_map(|(_, of)| std::fs::read_to_string(of.join("status")).ok());
        statuses.map(|status| number_after(&status, "voluntary_ctxt_switches:")).sum()
    }

    /// Returns the number and the directory of each thread.
    fn thread_directories(self) -> anyhow::Result<Vec<(u32, PathBuf)>> {
        let threads = self.path("task");
        let failed = || format!("{} cannot be read: Linux has it while the process runs", threads.display());
        let mut directories = Vec::new();
        for thread in std::fs::read_dir(&threads).with_context(failed)? {
            let thread = thread.with_context(failed)?;
            let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
            directories.push((number.context("a thread has a number")?, thread.path()));
        }
        Ok(directories)
    }
}

/// Returns a thread by its `stat` and, where the system has it, its `schedstat`.
fn thread(number: u32, stat: &str, times: Option<&str>) -> anyhow::Result<Thread> {
    let (_, name) = stat.split_once('(').context("the name begins")?;
    let (name, _) = name.rsplit_once(')').context("the name ends")?;
    let mut times = times.unwrap_or_default().split_whitespace().map(str::parse::<u64>);
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let (ran, waited) = match (times.next(), times.next()) {
        (Some(ran), Some(waited)) => (seconds(ran?), Some(seconds(waited?))),
        _ => (cpu_seconds(stat)?, None),
    };
    Ok(Thread { number, name: name.to_owned(), ran, waited })
}

/// Returns the processor time in the `stat` of a process or thread.
fn cpu_seconds(stat: &str) -> anyhow::Result<f64> {
    // The name is in parentheses and may have spaces. User and system time are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(')').context("the name ends")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>().context("numbers of ticks")?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
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
    fn threads_are_known_by_their_names() {
        let (waits, waited) = std::sync::mpsc::sync_channel::<()>(1);
        let thread = std::thread::Builder::new().name("counted by 1".to_owned());
        let thread = thread.spawn(move || waited.recv().is_ok()).unwrap();
        // A thread sets its name itself, soon after it began.
        while Process::This.cpu_seconds_of("counted by").unwrap().1 == 0 {
            std::thread::yield_now();
        }
        assert_eq!(Process::This.cpu_seconds_of("counted by 2").unwrap(), (0.0, 0));
        drop(waits);
        thread.join().unwrap();
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(cpu_seconds(stat).unwrap(), 2.0);
    }

    #[test]
    fn times_of_a_thread_are_those_of_the_scheduler_or_ticks() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 100 0 0";
        let precise = thread(7, stat, Some("2500000000 500000000 12\n")).unwrap();
        let expected = Thread { number: 7, name: "a (b) c".to_owned(), ran: 2.5, waited: Some(0.5) };
        assert_eq!(precise, expected);
        assert_eq!(thread(7, stat, None).unwrap(), Thread { ran: 2.0, waited: None, ..expected });
        let own = Process::This.threads().unwrap();
        assert!(own.iter().any(|thread| thread.number == std::process::id()), "{own:?}");
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
