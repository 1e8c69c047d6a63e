//! The rows of `wharf-bench engine`, as data.

use wharf_core::request::Policy;

use super::scenario::Kind;

/// A row with its default measurements.
#[derive(Clone, Copy, Debug)]
pub struct RowSpec {
    /// The name in `--rows` and in the report.
    pub name: &'static str,
    /// The scenario.
    pub kind: Kind,
    /// Policies by name. A policy that the engine does not have is left out.
    pub policies: &'static [&'static str],
    /// The numbers of nodes.
    pub nodes: &'static [u32],
    /// The targets of the figures.
    pub target: Target,
}

impl RowSpec {
    /// Returns whether the cache lines of the row are recorded, and what they cost alone is measured.
    #[must_use]
    pub fn has_touch(&self) -> bool {
        self.target == Target::Steady || matches!(self.kind, Kind::Full | Kind::AllDifferent)
    }
}

/// The targets of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Limits by number of nodes: on nanoseconds, and relative to the floor and the scan.
    Steady,
    /// Ten times the p99 of `steady`. Some rows also have a limit on nanoseconds.
    Unkind,
    /// A limit on visits by the smaller of candidate set and search.
    Candidates,
    /// 20 µs.
    Fragmentation,
    /// 1.6 times `steady`, including the work of a service outside the step: views, holds,
    /// records, replies.
    Served,
}

const STEADY: [&str; 2] = ["least-fit", "best-fit"];
const ALL: [&str; 5] = ["least-fit", "best-fit", "first-fit", "next-fit", "random"];

const fn unkind(name: &'static str, kind: Kind) -> RowSpec {
    RowSpec { name, kind, policies: &ALL, nodes: &[10_000], target: Target::Unkind }
}

const fn candidates(name: &'static str, kind: Kind) -> RowSpec {
    RowSpec { name, kind, policies: &STEADY, nodes: &[10_000], target: Target::Candidates }
}

/// All rows, in the order of the report.
pub const ROWS: [RowSpec; 14] = [
    RowSpec {
        name: "steady",
        kind: Kind::Steady,
        policies: &STEADY,
        nodes: &[1_000, 10_000, 100_000, 1_000_000],
        target: Target::Steady,
    },
    unkind("adversarial-last", Kind::Last),
    unkind("adversarial-last-by-less", Kind::LastByLess),
    unkind("adversarial-anticorrelated", Kind::Anticorrelated),
    unkind("adversarial-fractions", Kind::Fractions),
    unkind("full-99.5", Kind::Full),
    unkind("all-equal", Kind::AllEqual),
    unkind("all-different", Kind::AllDifferent),
    candidates("candidates-1", Kind::Candidates(1)),
    candidates("candidates-10", Kind::Candidates(10)),
    candidates("candidates-1000", Kind::Candidates(1000)),
    candidates("candidates-half", Kind::CandidatesHalf),
    RowSpec {
        name: "fgd",
        kind: Kind::Steady,
        policies: &["fgd"],
        nodes: &[1_213, 10_000],
        target: Target::Fragmentation,
    },
    RowSpec {
        name: "served-step",
        kind: Kind::Steady,
        policies: &STEADY,
        nodes: &[10_000],
        target: Target::Served,
    },
];

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// The row.
    pub row: RowSpec,
    /// The number of nodes of the cluster.
    pub nodes: u32,
    /// The placement policy.
    pub policy: Policy,
}

/// The selection of the command line.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Rows by name. If empty, all rows; or if `nodes` or `policy` is given, the row that shows the policy.
    pub rows: Vec<String>,
    /// Numbers of nodes that replace each row's own.
    pub nodes: Vec<u32>,
    /// The policy that replaces each row's own.
    pub policy: Option<Policy>,
}

impl Selection {
    /// Returns the measurements in the order of [`ROWS`].
    ///
    /// # Errors
    /// When a name is not a row.
    pub fn plan(&self) -> Result<Vec<Planned>, String> {
        let names = ROWS.map(|row| row.name);
        if let Some(unknown) = self.rows.iter().find(|name| !names.contains(&name.as_str())) {
            return Err(format!("`{unknown}` is not a row: give one of {}", names.join(", ")));
        }
        let alone = !self.nodes.is_empty() || self.policy.is_some();
        let policy_row =
            if self.policy.is_some_and(|policy| policy.name() == "fgd") { "fgd" } else { "steady" };
        let selected = |row: &&RowSpec| match &self.rows[..] {
            [] if alone => row.name == policy_row,
            [] => true,
            given => given.iter().any(|name| name == row.name),
        };
        let mut plan = Vec::new();
        for row in ROWS.iter().filter(selected) {
            let own = row.policies.iter().filter_map(|name| name.parse().ok());
            let policies: Vec<Policy> = self.policy.map_or_else(|| own.collect(), |policy| vec![policy]);
            let nodes = if self.nodes.is_empty() { row.nodes } else { &self.nodes };
            let pairs = nodes.iter().flat_map(|&nodes| policies.iter().map(move |&policy| (nodes, policy)));
            plan.extend(pairs.map(|(nodes, policy)| Planned { row: *row, nodes, policy }));
        }
        Ok(plan)
    }
}

/// Describes what a search does if its first method finds nothing quickly.
#[must_use]
pub fn fallback(policy: Policy) -> &'static str {
    match policy.name() {
        "least-fit" | "best-fit" => {
            "nodes that fail exactly are refused one by one; bounds of cells that were searched without success are computed again, so that later searches skip them"
        }
        "first-fit" | "next-fit" => {
            "the ordinal tree's runs of 16 nodes are scanned where their maxima suffice"
        }
        "random" => {
            "a draw per 16 nodes (32 to 1,024; of named candidates 32), then those whose coordinate suffices are listed, and one of them is drawn"
        }
        "fgd" => {
            "a short list that ran empty below its bound is built again from all nodes, about once in as many placements as it is long"
        }
        _ => "the policy's own",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(selection: &Selection) -> Vec<(&'static str, u32, &'static str)> {
        let plan = selection.plan().unwrap();
        plan.iter().map(|planned| (planned.row.name, planned.nodes, planned.policy.name())).collect()
    }

    #[test]
    fn nodes_and_policy_select_one_row() {
        let policy = Some(Policy::BestFit);
        let selection = Selection { nodes: vec![500], policy, ..Selection::default() };
        assert_eq!(named(&selection), [("steady", 500, "best-fit")]);
        let all = named(&Selection::default());
        assert!(ROWS.iter().all(|row| row.name == "fgd" || all.iter().any(|&(name, ..)| name == row.name)));
        assert_eq!(all.iter().filter(|&&(name, ..)| name == "steady").count(), 8);
    }

    #[test]
    fn an_unknown_row_is_refused_with_the_names_there_are() {
        let selection = Selection { rows: vec!["stedy".to_owned()], ..Selection::default() };
        let error = selection.plan().unwrap_err();
        assert!(error.contains("`stedy`") && error.contains("candidates-half"), "{error}");
    }
}
