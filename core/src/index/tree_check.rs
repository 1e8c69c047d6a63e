//! What tests, explanations and audits ask of the bucket tree: all of it costs O(nodes).

use super::Slot;
use super::key::Key;
use super::page::{NO_PAGE, Page, PageId, Run};
use super::ranks::{Rank, Ranks};
use super::tree::{BucketTree, Direction, Place};

impl<K: Key> BucketTree<K> {
    /// All nodes in order of key, then of rank.
    fn nodes(&self) -> Vec<(K, Rank)> {
        let mut nodes = Vec::new();
        self.collect(self.root, &mut nodes);
        nodes
    }

    fn collect(&self, id: PageId, nodes: &mut Vec<(K, Rank)>) {
        let page = self.page(id);
        for &child in &page.children[..page.len()] {
            if page.over_runs {
                let run = &self.runs[child as usize].nodes;
                let held = run.keys.iter().zip(&run.ranks).take(run.len());
                nodes.extend(held.map(|(&key, &rank)| (key, rank)));
            } else {
                self.collect(child, nodes);
            }
        }
    }

    /// The leaves in order, each with its nodes in order of registration.
    pub(super) fn leaves(&self, direction: Direction) -> Vec<(K, Vec<Rank>)> {
        let mut leaves: Vec<(K, Vec<Rank>)> = Vec::new();
        for (key, rank) in self.nodes() {
            match leaves.last_mut() {
                Some((last, ranks)) if *last == key => ranks.push(rank),
                _ => leaves.push((key, vec![rank])),
            }
        }
        if direction == Direction::Greatest {
            leaves.reverse();
        }
        leaves
    }

    /// Non-empty buckets of a tree with `levels` dimensions, the root included: every prefix of the
    /// coordinates of the nodes.
    pub(super) fn bucket_count(&self, levels: usize) -> usize {
        let keys: Vec<_> = self.nodes().iter().map(|(key, _)| key.coordinate()).collect();
        let below_root = |level: usize| {
            let differ = |pair: &&[super::Coordinate]| pair[0].0[..=level] != pair[1].0[..=level];
            keys.windows(2).filter(differ).count() + usize::from(!keys.is_empty())
        };
        1 + (0..levels).map(below_root).sum::<usize>()
    }

    /// Bytes that its structures hold.
    pub(super) fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run<K>>()
            + self.pages.capacity() * size_of::<Page<K>>()
            + (self.free_runs.capacity() + self.free_pages.capacity()) * size_of::<PageId>()
            + self.places.capacity() * size_of::<Place<K>>()
            + self.marks.capacity() * size_of::<super::Marks>()
    }

    /// Checks the structure: order, links, that what pages say covers what is below, that every
    /// node stands where it is said to, and how many there are.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, ranks: &Ranks, nodes: usize) -> Result<(), String> {
        let all = self.nodes();
        if !all.is_sorted_by(|a, b| a < b) {
            return Err("the nodes of the tree are out of order".to_owned());
        }
        let placed = self.places.iter().filter(|place| place.run != NO_PAGE).count();
        if all.len() != nodes || placed != nodes {
            return Err(format!("the tree holds {} nodes, {placed} are placed, {nodes} expected", all.len()));
        }
        for (slot, place) in (0..).zip(&self.places).filter(|(_, place)| place.run != NO_PAGE) {
            let (run, rank) = (&self.runs[place.run as usize].nodes, ranks.of(slot as Slot));
            let at = run.place(place.key, rank);
            if at >= run.len() || (run.keys[at], run.ranks[at]) != (place.key, rank) {
                return Err(format!("slot {slot} is not in the run where it is said to stand"));
            }
        }
        let (runs, pages) = self.check_page(self.root)?;
        if runs + self.free_runs.len() != self.runs.len() || pages + self.free_pages.len() != self.pages.len()
        {
            return Err(format!("{runs} runs and {pages} pages are linked, others are lost"));
        }
        Ok(())
    }

    /// Checks what is below a page; how many runs and pages there are.
    fn check_page(&self, id: PageId) -> Result<(usize, usize), String> {
        let page = self.page(id);
        if (page.link.parent == NO_PAGE) != (id == self.root) {
            return Err(format!("page {id} has no parent, or the root has one"));
        }
        let (mut runs, mut pages) = (0, 1);
        for at in 0..page.len() {
            let child = page.child(at);
            let link = if page.over_runs {
                runs += 1;
                self.runs[child.id as usize].link
            } else {
                let (more_runs, more_pages) = self.check_page(child.id)?;
                (runs, pages) = (runs + more_runs, pages + more_pages);
                self.page(child.id).link
            };
            if (link.parent, usize::from(link.at)) != (id, at) {
                return Err(format!("child {at} of page {id} hangs elsewhere"));
            }
            let mut below = Vec::new();
            if page.over_runs {
                let run = &self.runs[child.id as usize].nodes;
                below.extend(run.keys.iter().zip(&run.ranks).take(run.len()).map(|(&k, &r)| (k, r)));
            } else {
                self.collect(child.id, &mut below);
            }
            let ordered = below.iter().all(|&entry| entry >= child.first);
            let before = at + 1 == page.len() || below.iter().all(|&entry| entry < page.child(at + 1).first);
            let covered = below
                .iter()
                .all(|&(key, rank)| child.high.reaches(key) && child.marks.hold(self.marks(rank)));
            if below.is_empty() || !ordered || !before || !covered {
                return Err(format!(
                    "what page {id} says of its child {at}, {child:?}, is not so of {below:?}"
                ));
            }
        }
        Ok((runs, pages))
    }
}
