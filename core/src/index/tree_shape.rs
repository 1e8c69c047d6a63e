//! How the bucket tree stays balanced: full runs and pages are cut in two, small neighbours joined.

use super::Marks;
use super::key::Key;
use super::page::{Child, Link, NO_PAGE, Page, PageId, Run};
use super::ranks::{Rank, Ranks};
use super::tree::BucketTree;

impl<K: Key> BucketTree<K> {
    /// The root has no child: it gets one, for this entry.
    #[cold]
    pub(super) fn first_run(&mut self, first: (K, Rank), marks: Marks) -> PageId {
        let root = self.root;
        let id = self.new_run(Link { parent: root, at: 0 });
        let child = Child { first, high: first.0, marks, id };
        self.page_mut(root).insert(0, child);
        id
    }

    fn new_run(&mut self, link: Link) -> PageId {
        if let Some(id) = self.free_runs.pop() {
            self.runs[id as usize] = Run::new(link);
            return id;
        }
        self.runs.push(Run::new(link));
        PageId::try_from(self.runs.len() - 1).expect("fewer runs than u32 can count")
    }

    fn new_page(&mut self, link: Link, over_runs: bool) -> PageId {
        if let Some(id) = self.free_pages.pop() {
            self.pages[id as usize] = Page::new(link, over_runs);
            return id;
        }
        self.pages.push(Page::new(link, over_runs));
        PageId::try_from(self.pages.len() - 1).expect("fewer pages than u32 can count")
    }

    /// Per field the largest key of a run, and the marks of its nodes.
    pub(super) fn sum_of_run(&self, run: PageId) -> (K, Marks) {
        let run = &self.runs[run as usize];
        let marks = if self.marks.is_empty() {
            Marks::NONE
        } else {
            run.nodes.ranks[..run.nodes.len()].iter().fold(Marks::NONE, |all, &rank| all.or(self.marks(rank)))
        };
        (run.high(), marks)
    }

    /// What a page should say of its child.
    pub(super) fn sum_of_child(&self, page: PageId, at: usize) -> (K, Marks) {
        let (page, child) = (self.page(page), self.page(page).children[at]);
        if page.over_runs { self.sum_of_run(child) } else { self.page(child).sum() }
    }

    /// Puts right what page `id` says of its child at `at`, which was entered in vain.
    #[inline]
    pub(super) fn settle(&mut self, id: PageId, at: usize, marks: bool) {
        let page = self.page(id);
        let stale = page.stale >> at & 1 == 1;
        let stale_marks = marks && page.stale_marks >> at & 1 == 1;
        if stale || stale_marks {
            self.settle_stale(id, at, stale_marks);
        }
    }

    fn settle_stale(&mut self, id: PageId, at: usize, marks_too: bool) {
        let (high, marks) = if marks_too || !self.page(id).over_runs {
            self.sum_of_child(id, at)
        } else {
            (self.runs[self.page(id).children[at] as usize].high(), Marks::NONE)
        };
        let page = self.page_mut(id);
        page.stale &= !(1 << at);
        let mut lower = page.highs[at] != high;
        page.highs[at] = high;
        if marks_too {
            page.stale_marks &= !(1 << at);
            lower |= page.marks[at] != marks;
            page.marks[at] = marks;
        }
        let link = page.link;
        if lower && link.parent != NO_PAGE {
            let above = self.page_mut(link.parent);
            above.stale |= 1 << link.at;
            above.stale_marks |= u64::from(marks_too) << link.at;
        }
    }

    /// Cuts a full run in two.
    pub(super) fn cut_run(&mut self, id: PageId, ranks: &Ranks) {
        if self.page(self.runs[id as usize].link.parent).len() >= self.room {
            self.cut_page(self.runs[id as usize].link.parent);
        }
        let Link { parent, at } = self.runs[id as usize].link;
        let other = self.new_run(Link { parent, at: at + 1 });
        let len = self.runs[id as usize].nodes.len();
        for (to, from) in (len / 2..len).enumerate() {
            let nodes = &self.runs[id as usize].nodes;
            let (key, rank) = (nodes.keys[from], nodes.ranks[from]);
            self.runs[other as usize].insert(to, key, rank);
            self.places[ranks.slot(rank) as usize].run = other;
        }
        self.runs[id as usize].truncate(len / 2);
        let nodes = &self.runs[other as usize].nodes;
        let first = (nodes.keys[0], nodes.ranks[0]);
        self.hang_beside(parent, usize::from(at), first, other);
    }

    /// Cuts a full page in two, after its parent if that is full too.
    fn cut_page(&mut self, id: PageId) {
        if self.page(id).link.parent == NO_PAGE {
            self.grow();
        } else if self.page(self.page(id).link.parent).len() >= self.room {
            self.cut_page(self.page(id).link.parent);
        }
        let Link { parent, at } = self.page(id).link;
        let other = self.new_page(Link { parent, at: at + 1 }, self.page(id).over_runs);
        let len = self.page(id).len();
        for (to, from) in (len / 2..len).enumerate() {
            let child = self.page(id).child(from);
            self.adopt(other, to, child);
        }
        // What may say too much of a child may do so in either page.
        self.page_mut(other).stale = u64::MAX.checked_shr(64 - (len - len / 2) as u32).unwrap_or(0);
        self.page_mut(other).stale_marks = self.page(other).stale;
        self.page_mut(id).truncate(len / 2);
        let first = self.page(other).child(0).first;
        self.hang_beside(parent, usize::from(at), first, other);
    }

    /// Puts a child at the end of a page, or at its place there.
    fn adopt(&mut self, page: PageId, at: usize, child: Child<K>) {
        self.page_mut(page).insert(at, child);
        self.set_link(page, at);
    }

    /// The child of `page` at `at` learns that it hangs there.
    fn set_link(&mut self, page: PageId, at: usize) {
        let (over_runs, child) = (self.page(page).over_runs, self.page(page).children[at]);
        let link = Link { parent: page, at: at as u8 };
        if over_runs {
            self.runs[child as usize].link = link;
        } else {
            self.page_mut(child).link = link;
        }
    }

    /// Hangs `other`, the upper half of the child of `parent` at `at`, beside it.
    fn hang_beside(&mut self, parent: PageId, at: usize, first: (K, Rank), other: PageId) {
        let placeholder = Child { first, high: K::default(), marks: Marks::NONE, id: other };
        self.page_mut(parent).insert(at + 1, placeholder);
        for place in at + 1..self.page(parent).len() {
            self.set_link(parent, place);
        }
        for place in [at, at + 1] {
            let sum = self.sum_of_child(parent, place);
            let page = self.page_mut(parent);
            (page.highs[place], page.marks[place]) = sum;
            page.stale &= !(1 << place);
            page.stale_marks &= !(1 << place);
        }
    }

    /// Puts a level above the root.
    fn grow(&mut self) {
        let old = self.root;
        self.root = self.new_page(Link { parent: NO_PAGE, at: 0 }, false);
        let (high, marks) = self.page(old).sum();
        let root = self.root;
        self.adopt(root, 0, Child { first: self.page(old).child(0).first, high, marks, id: old });
    }

    /// A run holds little: it goes when it is empty, and takes up the next one when both are small.
    pub(super) fn shrunk(&mut self, id: PageId, ranks: &Ranks) {
        let Link { parent, at } = self.runs[id as usize].link;
        let at = usize::from(at);
        if self.runs[id as usize].nodes.len() == 0 {
            self.free_runs.push(id);
            self.unhang(parent, at);
            return;
        }
        if at + 1 >= self.page(parent).len() {
            return;
        }
        let next = self.page(parent).children[at + 1];
        let (held, more) = (self.runs[id as usize].nodes.len(), self.runs[next as usize].nodes.len());
        if held + more > self.room / 2 {
            return;
        }
        for from in 0..more {
            let nodes = &self.runs[next as usize].nodes;
            let (key, rank) = (nodes.keys[from], nodes.ranks[from]);
            self.runs[id as usize].insert(held + from, key, rank);
            self.places[ranks.slot(rank) as usize].run = id;
        }
        self.free_runs.push(next);
        self.take_up(parent, at);
        self.unhang(parent, at + 1);
    }

    /// The child at `at` now holds what the next one held: what is said of both is said of it.
    fn take_up(&mut self, parent: PageId, at: usize) {
        let page = self.page_mut(parent);
        page.highs[at] = page.highs[at].highest(page.highs[at + 1]);
        page.marks[at] = page.marks[at].or(page.marks[at + 1]);
        page.stale |= 1 << at;
        page.stale_marks |= 1 << at;
    }

    /// Takes the child at `at` out of a page; a page that is then small follows.
    fn unhang(&mut self, id: PageId, at: usize) {
        self.page_mut(id).remove(at);
        for place in at..self.page(id).len() {
            self.set_link(id, place);
        }
        let Page { link, over_runs, .. } = *self.page(id);
        let len = self.page(id).len();
        if link.parent == NO_PAGE {
            if len == 0 {
                self.page_mut(id).over_runs = true;
            } else if len == 1 && !over_runs {
                self.root = self.page(id).children[0];
                self.free_pages.push(id);
                let root = self.root;
                self.page_mut(root).link = link;
            }
            return;
        }
        let (parent, at) = (link.parent, usize::from(link.at));
        if len == 0 {
            self.free_pages.push(id);
            self.unhang(parent, at);
            return;
        }
        let above = self.page_mut(parent);
        above.stale |= 1 << at;
        above.stale_marks |= 1 << at;
        if len * 4 < self.room && at + 1 < self.page(parent).len() {
            let next = self.page(parent).children[at + 1];
            let more = self.page(next).len();
            if len + more <= self.room / 2 {
                for from in 0..more {
                    let child = self.page(next).child(from);
                    self.adopt(id, len + from, child);
                    let page = self.page_mut(id);
                    page.stale |= 1 << (len + from);
                    page.stale_marks |= 1 << (len + from);
                }
                self.free_pages.push(next);
                self.take_up(parent, at);
                self.unhang(parent, at + 1);
            }
        }
    }
}
