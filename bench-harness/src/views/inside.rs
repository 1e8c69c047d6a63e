//! An alternative to the planners' private copies: an index that is part of the view.
//!
//! This is its cheapest form: a tree over the slots with eight children per branch and the largest free
//! amounts below each. Successive views share it like the view's own chunks, so a change copies the path to
//! the changed slot. It only finds the first node that fits. An index for the other policies (cells by
//! coordinate, orders, marks, ranks) would copy two larger paths per change: one out of the old cell and one
//! into the new cell.

use std::sync::Arc;

use wharf_core::index::Slot;
use wharf_core::view::HotImage;

const FAN: usize = 8;

/// Free amounts: cpu and memory in their units, whole GPUs, and the largest free part of a GPU.
pub(super) type Free = [i64; 4];

const NOTHING: Free = [-1; 4];

#[derive(Clone)]
struct Branch {
    /// The largest free amounts below each child.
    most: [Free; FAN],
    children: [Option<Arc<Self>>; FAN],
}

impl Branch {
    fn empty() -> Self {
        Self { most: [NOTHING; FAN], children: std::array::from_fn(|_| None) }
    }

    /// Returns the maximum of each amount over all children.
    fn largest(&self) -> Free {
        self.most.iter().fold(NOTHING, |most, child| std::array::from_fn(|i| most[i].max(child[i])))
    }
}

/// A persistent index. A clone is an immutable view of it.
#[derive(Clone)]
pub(super) struct Inside {
    root: Arc<Branch>,
    levels: u32,
}

/// Returns the free amounts of an image.
pub(super) fn free_of(image: &HotImage) -> Free {
    if image.state.is_none() {
        return NOTHING;
    }
    let whole = i64::from(image.whole_gpus);
    let part = i64::from(image.largest_gpu_part);
    [image.cpu.units(), image.memory.units(), whole, part]
}

impl Inside {
    /// Creates an index for this number of slots.
    pub(super) fn new(slots: u32) -> Self {
        let mut levels = 1;
        while FAN.pow(levels) < slots as usize {
            levels += 1;
        }
        Self { root: Arc::new(Branch::empty()), levels }
    }

    /// Sets the free amounts of a slot. Branches shared with a clone are copied first.
    pub(super) fn set(&mut self, slot: Slot, free: Free) {
        set(&mut self.root, self.levels - 1, slot as usize, free);
    }

    /// Returns the first slot with enough free.
    pub(super) fn first_fit(&self, asked: &Free) -> Option<Slot> {
        first_fit(&self.root, self.levels - 1, asked).map(|slot| slot as Slot)
    }
}

fn set(branch: &mut Arc<Branch>, level: u32, slot: usize, free: Free) {
    let branch = Arc::make_mut(branch);
    let at = slot / FAN.pow(level) % FAN;
    branch.most[at] = if level == 0 {
        free
    } else {
        let child = branch.children[at].get_or_insert_with(|| Arc::new(Branch::empty()));
        set(child, level - 1, slot, free);
        child.largest()
    };
}

fn first_fit(branch: &Branch, level: u32, asked: &Free) -> Option<usize> {
    let fits = |most: &Free| most.iter().zip(asked).all(|(most, asked)| most >= asked);
    (0..FAN).filter(|&at| fits(&branch.most[at])).find_map(|at| {
        if level == 0 {
            return Some(at);
        }
        let below = first_fit(branch.children[at].as_ref()?, level - 1, asked)?;
        Some(at * FAN.pow(level) + below)
    })
}

#[cfg(test)]
mod tests {
    use wharf_core::rng::Rng;

    use super::*;

    #[test]
    fn it_finds_what_a_scan_finds_and_a_clone_stays_as_it_was() {
        let mut rng = Rng::new(1);
        let draw = |rng: &mut Rng| -> Free { std::array::from_fn(|_| rng.below(8) as i64) };
        let mut index = Inside::new(300);
        let mut nodes = vec![NOTHING; 300];
        let mut kept = (index.clone(), nodes.clone());
        for round in 0..2_000u32 {
            let slot = rng.below(300) as usize;
            nodes[slot] = draw(&mut rng);
            index.set(slot as Slot, nodes[slot]);
            let asked = draw(&mut rng);
            for (index, nodes) in [(&index, &nodes), (&kept.0, &kept.1)] {
                let scan = nodes.iter().position(|free| free.iter().zip(&asked).all(|(f, a)| f >= a));
                assert_eq!(index.first_fit(&asked), scan.map(|slot| slot as Slot));
            }
            if round % 100 == 0 {
                kept = (index.clone(), nodes.clone());
            }
        }
    }
}
