//! Generates the page of module dependencies: `cargo run -p wharf-fuzz --example modules > docs/modules.md`.

use std::path::Path;

use wharf_fuzz::modules_page;

fn main() -> std::io::Result<()> {
    print!("{}", modules_page(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src"))?);
    Ok(())
}
