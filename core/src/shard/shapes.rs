//! The distinct shapes of waiting requests, found by what a node has available: the dual of the
//! bucket tree. Where that finds nodes that are large enough for a request, this finds requests
//! that are small enough for a node, and leaves out whole subtrees of which even the least in
//! every dimension is too large.

use std::collections::BTreeMap;

use crate::index::ResourceVector;
use crate::memory;

/// Dimensions: cpu, memory, whole GPUs, part of a GPU.
const DIMENSIONS: usize = 4;

/// What is asked in each dimension.
pub(super) type Asked = [i64; DIMENSIONS];

/// A vector as it is compared here.
pub(super) fn asked(vector: &ResourceVector) -> Asked {
    let (whole, part) = (i64::from(vector.whole_gpus), i64::from(vector.largest_gpu_part));
    [vector.cpu.units(), vector.memory.units(), whole, part]
}

fn fits(asked: &Asked, available: &Asked) -> bool {
    asked.iter().zip(available).all(|(asked, available)| asked <= available)
}

/// One level of the tree: the values of one dimension, or the shapes that ask the same in all.
#[derive(Default)]
struct Level {
    /// The least asked below, per dimension.
    least: Asked,
    children: BTreeMap<i64, Self>,
    shapes: Vec<usize>,
}

impl Level {
    fn insert(&mut self, depth: usize, asked: &Asked, shape: usize) {
        if self.children.is_empty() && self.shapes.is_empty() {
            self.least = *asked;
        }
        for (least, &asked) in self.least.iter_mut().zip(asked) {
            *least = (*least).min(asked);
        }
        match asked.get(depth) {
            Some(&value) => self.children.entry(value).or_default().insert(depth + 1, asked, shape),
            None => self.shapes.push(shape),
        }
    }

    fn remove(&mut self, depth: usize, asked: &Asked, shape: usize) {
        let Some(&value) = asked.get(depth) else {
            self.shapes.retain(|&known| known != shape);
            return;
        };
        let child = self.children.get_mut(&value).expect("a shape stands where it was put");
        child.remove(depth + 1, asked, shape);
        if child.children.is_empty() && child.shapes.is_empty() {
            self.children.remove(&value);
        }
        if let Some(first) = self.children.values().next() {
            self.least = first.least;
            for child in self.children.values() {
                for (least, &below) in self.least.iter_mut().zip(&child.least) {
                    *least = (*least).min(below);
                }
            }
        }
    }

    fn memory(&self) -> u64 {
        let children = memory::of_btree(self.children.len(), size_of::<(i64, Self)>());
        memory::of_vec(&self.shapes) + children + self.children.values().map(Self::memory).sum::<u64>()
    }

    fn visit(&self, depth: usize, available: &Asked, visits: &mut u64, found: &mut Vec<usize>) {
        *visits += 1;
        if !fits(&self.least, available) {
            return;
        }
        found.extend(&self.shapes);
        if let Some(&most) = available.get(depth) {
            for child in self.children.range(..=most).map(|(_, child)| child) {
                child.visit(depth + 1, available, visits, found);
            }
        }
    }
}

/// The shapes, by what they ask.
#[derive(Default)]
pub(super) struct ShapeTree {
    root: Level,
}

impl ShapeTree {
    pub(super) fn insert(&mut self, asked: &Asked, shape: usize) {
        self.root.insert(0, asked, shape);
    }

    pub(super) fn remove(&mut self, asked: &Asked, shape: usize) {
        self.root.remove(0, asked, shape);
    }

    /// The bytes of its levels.
    pub(super) fn memory(&self) -> u64 {
        self.root.memory()
    }

    /// The shapes that ask no more than `available` in any dimension; `visits` counts the levels
    /// looked at.
    pub(super) fn within(&self, available: &Asked, visits: &mut u64) -> Vec<usize> {
        let mut found = Vec::new();
        if !self.root.children.is_empty() {
            self.root.visit(0, available, visits, &mut found);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn exactly_the_shapes_within_are_found() {
        let mut rng = Rng::new(5);
        let mut draw = || [0; DIMENSIONS].map(|_: u8| rng.below(6) as i64);
        let mut tree = ShapeTree::default();
        let mut all: Vec<Asked> = Vec::new();
        for _ in 0..300 {
            let asked = draw();
            tree.insert(&asked, all.len());
            all.push(asked);
            if all.len().is_multiple_of(3) {
                let gone = all.len() / 2;
                if all[gone][0] >= 0 {
                    tree.remove(&all[gone].clone(), gone);
                    all[gone] = [-1; DIMENSIONS];
                }
            }
            let available = draw();
            let mut found = tree.within(&available, &mut 0);
            found.sort_unstable();
            let right: Vec<usize> =
                (0..all.len()).filter(|&at| all[at][0] >= 0 && fits(&all[at], &available)).collect();
            assert_eq!(found, right);
        }
    }
}
