//! What waits for a plan of nodes: the groups of all planners, and the placements of all shards.
//!
//! The keeper of jobs asks each planner and each shard for pages, over the same rings as other callers. So each answers on its
//! own thread, in bounded steps, and nobody shares a lock.

use std::cmp::Reverse;

use crate::group::{ClientKey, GroupTurn, PlanJob, WaitingPage, WaitingPages, WaitingWork};
use crate::limits::WAITING_ROWS_PLANNED_MAX;
use crate::planner::Planner;
use crate::request::WaitingPlacements;
use crate::router::{PortRequest, Tag};
use crate::shard::{Command, WaitingPlacementsPage};
use crate::time::Time;

/// The client of the keeper at other planners.
const CLIENT: ClientKey = ClientKey::of_operator(0);

/// The tag of pages of shards. One is asked for at a time.
pub(in crate::planner) const PLACEMENTS_TAG: Tag = Tag::MAX - 2;

impl Planner {
    /// Begins to collect what waits. The groups of the keeper come [page by page](Self::list_own_groups).
    pub(super) fn collect_waiting(&mut self) -> Pages {
        let planners = self.port.planner_count();
        for planner in 0..planners {
            self.ask_for_groups(planner, None);
        }
        let shards = self.keeper_mut().replicas().len();
        self.ask_for_placements(0, 0);
        Pages {
            groups: WaitingPages::new(planners + 1),
            placements: PlacementPages::new(shards),
            own_after: None,
        }
    }

    /// Adds the next page of the groups of the keeper, which are those in queues. They come last: what is charged for them counts
    /// in the jobs, which are of the moment at which all is collected.
    pub(super) fn list_own_groups(&mut self, collecting: &mut Collecting) {
        let Collecting::Pages(pages) = collecting else { return };
        if pages.have_others_answered() && !pages.is_complete() {
            let page = self.waiting_page(pages.own_after);
            pages.own_after = pages.groups.take(self.port.planner_count(), page);
        }
    }

    /// Asks a planner for a page. The answer has the number of the planner as its tag.
    fn ask_for_groups(&mut self, planner: usize, after: Option<GroupTurn>) {
        let number = u16::try_from(planner).expect("PLANNERS_MAX fits u16");
        let request = PortRequest::PlanFor(CLIENT, PlanJob::ListWaiting(number, after), Time::NEVER);
        let now = self.now;
        let answered = self.port.submit(planner as Tag, request, now);
        // Each planner is asked for one page at a time.
        assert!(matches!(answered, Ok(None)), "the keeper of jobs may ask each planner for a page");
    }

    fn ask_for_placements(&mut self, shard: usize, from: u32) {
        let shard = self.shard_id(shard);
        self.outbox.push_back((PLACEMENTS_TAG, shard, Command::ListWaiting { from }));
    }

    /// Takes a page of a planner, and asks for the next one if it is needed.
    pub(in crate::planner) fn groups_listed(&mut self, tag: Tag, page: WaitingPage) {
        let planner = usize::try_from(tag).expect("the number of a planner");
        let pages = self.keeper_mut().nodes.pages_mut();
        if let Some(next) = pages.groups.take(planner, page) {
            self.ask_for_groups(planner, Some(next));
        }
    }

    /// Takes a page of a shard, and asks for the next one.
    pub(in crate::planner) fn placements_listed(&mut self, page: WaitingPlacementsPage) {
        let pages = self.keeper_mut().nodes.pages_mut();
        if let Some((shard, from)) = pages.placements.take(page) {
            self.ask_for_placements(shard, from);
        }
    }
}

/// The pages of planners and shards, while they arrive.
pub(super) struct Pages {
    groups: WaitingPages,
    placements: PlacementPages,
    /// After which turn the next page of the keeper's own groups begins. `None`: with the first.
    own_after: Option<GroupTurn>,
}

impl Pages {
    /// Returns whether only the keeper's own groups may be missing.
    fn have_others_answered(&self) -> bool {
        self.groups.awaited() <= 1 && self.placements.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.groups.is_complete() && self.placements.is_complete()
    }
}

/// The pages of shards, one shard after the other.
struct PlacementPages {
    shards: usize,
    /// The shard that is asked.
    at: usize,
    rows: Vec<WaitingPlacements>,
    /// The number of placements that are left out because there are too many kinds of them.
    left_out: u64,
}

impl PlacementPages {
    fn new(shards: usize) -> Self {
        Self { shards, at: 0, rows: Vec::new(), left_out: 0 }
    }

    fn is_complete(&self) -> bool {
        self.at == self.shards
    }

    /// Takes a page. Returns which page is to come next.
    fn take(&mut self, page: WaitingPlacementsPage) -> Option<(usize, u32)> {
        self.rows.extend(page.rows);
        if self.rows.len() >= 2 * WAITING_ROWS_PLANNED_MAX {
            self.cut();
        }
        if page.next.is_none() {
            self.at += 1;
        }
        (!self.is_complete()).then_some((self.at, page.next.unwrap_or(0)))
    }

    /// Leaves out the rows of the lowest priorities if there are too many.
    fn cut(&mut self) {
        self.rows.sort_by_key(|row| Reverse(row.priority));
        let last = self.rows.drain(WAITING_ROWS_PLANNED_MAX.min(self.rows.len())..);
        self.left_out += last.map(|row| row.count).sum::<u64>();
    }
}

/// How far what waits is collected.
pub(super) enum Collecting {
    /// It is asked for when the jobs are copied.
    Later,
    /// These pages have arrived.
    Pages(Pages),
    /// The request does not want it.
    Unwanted,
}

impl Collecting {
    /// Returns whether nothing can be done before others answer.
    pub(super) fn is_awaiting(&self) -> bool {
        matches!(self, Self::Pages(pages) if !pages.have_others_answered())
    }

    /// Returns whether all is collected that is wanted.
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Self::Later => false,
            Self::Pages(pages) => pages.is_complete(),
            Self::Unwanted => true,
        }
    }

    /// Returns what waits, when all have answered.
    pub(super) fn into_work(self) -> WaitingWork {
        match self {
            Self::Pages(Pages { groups, mut placements, .. }) => {
                placements.cut();
                let mut work = groups.into_work();
                work.placements = placements.rows;
                work.left_out += placements.left_out;
                work
            }
            Self::Unwanted => WaitingWork::default(),
            Self::Later => panic!("what waits is counted before anybody is asked for it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::test_bed::cores;

    fn rows(count: u32, priority: i32) -> Vec<WaitingPlacements> {
        (0..count).map(|_| WaitingPlacements { request: cores(1), priority, count: 3 }).collect()
    }

    #[test]
    fn shards_are_asked_in_turn_page_by_page() {
        let mut pages = PlacementPages::new(2);
        let page = |rows, next| WaitingPlacementsPage { rows, next };
        assert_eq!(pages.take(page(rows(2, 0), Some(9))), Some((0, 9)));
        assert_eq!(pages.take(page(rows(1, 4), None)), Some((1, 0)));
        assert!(!pages.is_complete());
        assert_eq!(pages.take(page(Vec::new(), None)), None);
        assert!(pages.is_complete());
        pages.cut();
        let priorities: Vec<i32> = pages.rows.iter().map(|row| row.priority).collect();
        assert_eq!((priorities, pages.left_out), (vec![4, 0, 0], 0));
    }

    #[test]
    fn of_too_many_kinds_those_of_the_lowest_priority_are_left_out_and_counted() {
        let most = u32::try_from(WAITING_ROWS_PLANNED_MAX).unwrap();
        let mut pages = PlacementPages::new(1);
        for number in 0..5 {
            let next = (number < 4).then_some(number);
            pages.take(WaitingPlacementsPage { rows: rows(most / 2, number as i32), next });
            assert!(pages.rows.len() < 2 * WAITING_ROWS_PLANNED_MAX, "a bounded number is kept");
        }
        pages.cut();
        assert_eq!(pages.rows.len(), WAITING_ROWS_PLANNED_MAX);
        assert!(pages.rows.iter().all(|row| row.priority >= 3));
        assert_eq!(pages.left_out, 3 * u64::from(most / 2) * 3);
    }
}
