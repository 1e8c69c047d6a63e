//! The binary as a command. It is a file of its own because tests that need nothing else of the harness use it, too.

use std::process::Command;

/// Returns a command of the binary without arguments. The settings of this environment are not those of the test.
pub(super) fn wharf() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wharf"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WHARF_") {
            command.env_remove(name);
        }
    }
    command
}
