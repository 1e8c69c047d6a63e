//! How the service stops and starts again.

use wharf_core::store::StoreState;

use super::World;
use super::opened::{At, HOLD_NS, Opened, open};
use crate::sim::checkers::Verdict;
use crate::sim::checkers::order::NoRingStarves;
use crate::sim::checkers::promises::a_start_keeps_the_books;
use crate::sim::gangs::Gangs;

impl World<'_> {
    /// The service stops cleanly and starts again, with another number of shards.
    pub(in crate::sim) fn restart(&mut self) -> Verdict {
        self.trace.line(format_args!("the service stops"));
        self.server.stop(&mut self.network, self.now);
        self.handle_events()?;
        let settles = self.choices.below(2) == 1;
        self.run_dry(settles)?;
        for said in self.desk.refuse_replacing() {
            self.say(said);
        }
        if self.is_planning()
            || !self.desk.is_idle()
            || self.server.under_way() > 0
            || self.server.waiting().next().is_some()
        {
            return Err(format!(
                "stops_empty: something is under way after a stop: planning {}, desk idle {}, under way {}",
                self.is_planning(),
                self.desk.is_idle(),
                self.server.under_way()
            ));
        }
        self.desk.export(self.now);
        let exported = loop {
            self.pass(1);
            for shard in 0..self.runners.len() {
                // An export begins a batch: what is in the rings beside it may have to wait for one more.
                self.twins[shard].starves = NoRingStarves::default();
                self.run_shard(shard)?;
            }
            self.desk.poll(self.now);
            if let Some(exported) = self.desk.take_exported() {
                break exported;
            }
        };
        let state = StoreState::collect(self.incarnation, self.now, &self.desk.registrar, exported);
        self.statements.handle_stop().map_err(|found| format!("all_or_none: {found}"))?;
        self.say_goodbye()?;
        let before = std::mem::take(&mut self.facts);
        let opened = open(&state, &mut self.choices, self.server.last_connection());
        let Opened { incarnation, runners, twins, facts, server, desk, planners, views, ports } = opened;
        (self.planners, self.views, self.kept) = (planners, views, None);
        self.gangs = Gangs::new(ports.1);
        self.coordinator.go_on(ports.0, incarnation);
        self.trace.line(format_args!("{incarnation:?} starts with {} shards", runners.len()));
        (self.incarnation, self.runners, self.twins, self.facts) = (incarnation, runners, twins, facts);
        (self.server, self.desk) = (server, desk);
        a_start_keeps_the_books(&before, &self.facts)
            .map_err(|found| format!("a_start_keeps_the_books: {found}"))?;
        for runner in &self.runners {
            runner.shard().check_invariants().map_err(|found| format!("a_start_keeps_the_books: {found}"))?;
        }
        Ok(())
    }

    /// Every thread goes on until nothing moves; the coordinator too, where it is to settle.
    pub(in crate::sim) fn run_dry(&mut self, settles: bool) -> Verdict {
        for _ in 0..1000 {
            self.pass(1);
            let mut moved = 0;
            for shard in 0..self.runners.len() {
                moved += self.run_shard(shard)?;
            }
            for front in 0..self.server.fronts.len() {
                moved += self.poll_front(front)?;
            }
            moved += self.move_desk()?;
            for planner in &mut self.planners {
                moved += planner.run_round(&At(self.now));
                // A round may send statements without having taken anything.
                moved += usize::from(planner.planner().is_committing());
            }
            moved += self.gangs.poll(self.now)?;
            moved += if settles { self.settle_coordinator()? } else { 0 };
            if moved == 0 {
                return Ok(());
            }
            if self.is_planning() {
                // It may wait for a hold to end.
                self.pass(HOLD_NS / 64);
            }
        }
        Err("comes_to_rest: the engine goes on for ever".to_owned())
    }

    /// The last replies reach their clients or do not; then sessions and connections are gone.
    pub(super) fn say_goodbye(&mut self) -> Verdict {
        self.network.lose_requests();
        while self.network.len() > 0 {
            if self.choices.below(2) == 0 {
                self.deliver_at(0)?;
            } else {
                self.network.take(0);
            }
        }
        for client in &mut self.clients {
            client.lose_session();
        }
        Ok(())
    }
}
