//! Processes of this same program that a command starts, for what must not share its process.
//!
//! Each prints one line of JSON when it has begun, and ends when its standard input does: so it also ends if the command
//! does. It may print another line before it ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::process::Process;

/// A process that was started. It is killed when this is dropped.
pub(super) struct Helper {
    child: Child,
    /// `None` once the process was told to end.
    stdin: Option<ChildStdin>,
    /// Kept open, so that the process can print.
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program with these arguments.
    pub(super) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("the path of this binary")?;
        let mut child = Command::new(binary)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("`wharf-bench {}` cannot be started", arguments.join(" ")))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        Ok(Self { child, stdin, stdout })
    }

    /// Waits for the next line that the process prints.
    ///
    /// # Errors
    /// When it ends before, or prints something else.
    pub(super) fn read<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).context("what a started process prints cannot be read")?;
        if line.is_empty() {
            let status = self.child.wait()?;
            bail!("a started process ended early ({status}): its message is above");
        }
        let line = line.trim();
        serde_json::from_str(line).with_context(|| format!("a started process printed `{line}`"))
    }

    pub(super) fn process(&self) -> Process {
        Process::Other(self.child.id())
    }

    /// Tells the process to end.
    pub(super) fn tell_end(&mut self) {
        drop(self.stdin.take());
    }

    /// Waits until the process has ended, which it was told to.
    ///
    /// # Errors
    /// When it did not end as it should.
    pub(super) fn wait(mut self) -> anyhow::Result<()> {
        assert!(self.stdin.is_none(), "a process that was not told to end does not");
        let status = self.child.wait().context("a started process cannot be waited for")?;
        anyhow::ensure!(status.success(), "a started process ended with {status}: its message is above");
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Neither does anything if the process has ended. Otherwise, what it would say is of no use any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line for the process that started this one.
pub(super) fn tell<T: Serialize>(line: &T) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string(line)?)?;
    stdout.flush()?;
    Ok(())
}

/// Waits until the process that started this one wants no more, or is gone.
pub(super) fn wait_for_end() {
    // What is written there means nothing.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
