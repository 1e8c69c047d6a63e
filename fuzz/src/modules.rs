//! The dependency graph of the engine's modules: draws `docs/modules.md` and checks that there is no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// The top-level modules of a crate, each with the modules that it uses. Test code does not count.
#[derive(Clone, Debug, Default)]
pub struct ModuleGraph {
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl ModuleGraph {
    /// Reads the sources of a crate below `src`.
    ///
    /// # Errors
    /// Returns an error when a file cannot be read.
    pub fn read(src: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        collect(src, &mut files)?;
        let mut graph = Self::default();
        for file in files {
            let below = file.strip_prefix(src).expect("it was found there");
            let first = below.iter().next().expect("a file has a name").to_string_lossy();
            let module = first.trim_end_matches(".rs");
            if module == "lib" || file.file_stem().is_some_and(|stem| stem == "tests") {
                continue;
            }
            graph.add(module, &std::fs::read_to_string(&file)?);
        }
        Ok(graph)
    }

    fn add(&mut self, module: &str, source: &str) {
        let used = self.uses.entry(module.to_owned()).or_default();
        let lines = source.lines().take_while(|line| !line.trim_start().starts_with("mod tests {"));
        for line in lines.filter(|line| !line.trim_start().starts_with("//")) {
            for after in line.split("crate::").skip(1) {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
                // A macro or an item of the crate root is not a module.
                if end > 0 && after[end..].starts_with("::") && &after[..end] != module {
                    used.insert(after[..end].to_owned());
                }
            }
        }
    }

    /// Returns a cycle of modules in order of use, or `None` when there is no cycle.
    #[must_use]
    pub fn circle(&self) -> Option<Vec<String>> {
        self.uses.keys().find_map(|module| self.way(module, module))
    }

    /// Returns a path of uses from one module to another, with both ends. The path has at least one step.
    fn way(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut seen = BTreeSet::new();
        let mut ways = vec![vec![from.to_owned()]];
        while let Some(way) = ways.pop() {
            let last = way.last().expect("a way has a start");
            for next in self.uses.get(last).into_iter().flatten() {
                let mut longer = way.clone();
                longer.push(next.clone());
                if next == to {
                    return Some(longer);
                }
                if seen.insert(next.clone()) {
                    ways.push(longer);
                }
            }
        }
        None
    }

    /// Returns the graph as Mermaid text. An arrow that follows from other arrows is left out.
    ///
    /// # Panics
    /// Panics when the graph has a cycle.
    #[must_use]
    pub fn drawing(&self) -> String {
        assert!(self.circle().is_none(), "modules use each other in a circle: {:?}", self.circle());
        let mut text = String::from("graph TD\n");
        for (module, used) in &self.uses {
            let direct = used.iter().filter(|to| {
                let mut others = used.iter().filter(|other| other != to);
                !others.any(|other| self.way(other, to).is_some())
            });
            for to in direct {
                writeln!(text, "  {module} --> {to}").expect("a string takes all");
            }
        }
        text
    }
}

/// Returns the page of the modules below `src`, as stored in `docs/modules.md`.
///
/// # Errors
/// Returns an error when a file cannot be read.
///
/// # Panics
/// Panics when the modules form a cycle.
pub fn modules_page(src: &Path) -> io::Result<String> {
    let drawing = ModuleGraph::read(src)?.drawing();
    Ok(format!(
        "# Modules of the engine\n\n\
         An arrow means *uses*. Arrows that follow from others are left out. A test checks that there is no circle and\n\
         that this page is up to date. To draw it again:\n\n\
         ```bash\ncargo run -p wharf-fuzz --example modules > docs/modules.md\n```\n\n\
         ```mermaid\n{drawing}```\n"
    ))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_what_follows_is_not_drawn() {
        let mut graph = ModuleGraph::default();
        graph.add("roof", "use crate::wall::Wall;\nuse crate::floor::{Floor, Tile};\n// crate::sky::Sky");
        graph.add("wall", "fn build() { crate::floor::lay() }\nmod tests {\n use crate::roof::Roof;");
        graph.add("floor", "");
        assert_eq!(graph.circle(), None);
        assert_eq!(graph.drawing(), "graph TD\n  roof --> wall\n  wall --> floor\n");
        graph.add("floor", "use crate::roof::Roof;");
        let circle = graph.circle().expect("all three");
        assert_eq!(circle.first(), circle.last());
        assert!(circle.len() > 2, "{circle:?}");
    }
}
