//! Writes the tables of the protocol's page: `cargo run -p wharf-fuzz --example protocol`.

use std::path::Path;

use wharf_fuzz::protocol_page;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = root.join("docs/protocol.md");
    let written = protocol_page(&root.join("net/src/protocol"), &std::fs::read_to_string(&page)?)?;
    std::fs::write(page, written)
}
