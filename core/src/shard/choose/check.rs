//! Checks that the searches agree with the books.

use super::Choose;
use crate::broken::{Broken, broken};
use crate::index::{Marks, Slot};
use crate::shard::books::Books;

impl Choose {
    /// Checks every structure over the whole state, after [`check_node`](Self::check_node) for every node. O(state).
    ///
    /// # Errors
    /// The first discrepancy.
    pub(crate) fn check(&self, books: &Books) -> Result<(), Broken> {
        for tree in [&self.index, &self.capacities] {
            tree.check_rest(|slot| books.nodes.is_node(slot))?;
        }
        self.reserved.check()?;
        let reserved = books.nodes_reserved() as usize;
        if self.reserved.len() != reserved {
            return Err(broken!(
                "{} reserved nodes are in the tree, {reserved} are reserved",
                self.reserved.len()
            ));
        }
        self.selectors.check(&books.nodes)?;
        self.rankings.check(&books.nodes)
    }

    /// Checks the place of one node in every structure.
    ///
    /// # Errors
    /// The first discrepancy.
    pub(crate) fn check_node(&self, books: &Books, slot: Slot) -> Result<(), Broken> {
        self.check_trees(books, slot)?;
        self.index.check_slot(slot)?;
        self.capacities.check_slot(slot)?;
        let id = books.nodes.hot(slot).id;
        let spec = &books.nodes.cold(slot).registration.spec;
        self.selectors.check_node(slot, id, &spec.labels)?;
        self.rankings.check_node(slot, id, spec)?;
        self.check_hybrid(books, slot)
    }

    /// Checks the coordinates and marks of one node.
    ///
    /// # Errors
    /// The first discrepancy.
    pub(crate) fn check_trees(&self, books: &Books, slot: Slot) -> Result<(), Broken> {
        let nodes = &books.nodes;
        let id = nodes.hot(slot).id;
        let geometry = self.index.geometry();
        let available = nodes.takes_work(slot).then(|| geometry.coordinate(&nodes.available(slot)));
        let own = books.available_to_owner(slot);
        let trees = [
            ("index", &self.index, available),
            ("capacities", &self.capacities, Some(geometry.coordinate(&nodes.capacity(slot)))),
            ("reserved nodes", &self.reserved, own.map(|own| geometry.coordinate(&own))),
        ];
        for (name, tree, expected) in trees {
            let found = tree.coordinate(slot);
            if found != expected {
                return Err(broken!(
                    "node {id} is at {found:?} in the tree of the {name}, expected {expected:?}"
                ));
            }
        }
        let selectors = self.selectors.marks_given().map(|(mark, set)| (mark, set.contains(slot)));
        let ranks = self.rankings.marks_given().map(|(mark, of, rank)| (mark, of.rank(slot) == rank));
        for (mark, expected) in selectors.chain(ranks) {
            for index in [&self.index, &self.capacities] {
                let marks = index.marks(slot);
                if marks.is_some_and(|marks| marks.hold(Marks::only(mark)) != expected) {
                    return Err(broken!("node {id}: mark {} is wrong", mark.number()));
                }
            }
        }
        Ok(())
    }
}
