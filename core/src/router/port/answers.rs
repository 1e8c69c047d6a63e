//! The answers of shards: replies to what was asked, or the next shard that is asked.

use super::super::placing::Placing;
use super::{Answer, Pending, Port, PortReply, Tag, merged};
use crate::ids::ShardId;
use crate::planted::{PlantedBug, is_planted};
use crate::reply::reply_of;
use crate::request::Placement;
use crate::shard::{Command, Outcome, Refused};
use crate::time::Time;

impl Port {
    pub(super) fn handle_answer(
        &mut self,
        shard: usize,
        answer: Answer,
        now: Time,
    ) -> Option<(Tag, PortReply)> {
        let token = answer.token as usize;
        if let Outcome::Auditing(number) = answer.outcome {
            let shard = ShardId(u16::try_from(shard).expect("SHARDS_MAX fits u16"));
            self.send(shard, token, None, Command::Audit { number }, now);
            return None;
        }
        match self.pending.get_mut(token).expect("an answer belongs to a pending request") {
            &mut Pending::Wait(number) => self.handle_wait_answer(token, number, answer.outcome),
            &mut Pending::Place(tag, key) => match answer.outcome {
                Outcome::Place(Ok(placement)) => {
                    self.pending.remove(token);
                    Some((tag, PortReply::Place(Ok(self.end_placing(key, placement)))))
                }
                outcome => self.handle_place_answer(token, tag, key, outcome, now),
            },
            &mut Pending::One(tag) => {
                self.pending.remove(token);
                Some((tag, PortReply::One(answer.outcome)))
            }
            Pending::Every { left, outcomes, tag } => {
                let tag = *tag;
                assert!(outcomes[shard].is_none(), "a shard answered twice");
                outcomes[shard] = Some(answer.outcome);
                *left -= 1;
                if *left > 0 {
                    return None;
                }
                let all = std::mem::take(outcomes).into_iter().flatten().collect();
                self.pending.remove(token);
                self.every_in_flight -= 1;
                Some((tag, PortReply::Every(all)))
            }
        }
    }

    /// Ends a placement that was granted. Returns the grant, with the selector that it satisfies.
    fn end_placing(&mut self, key: usize, mut placement: Placement) -> Placement {
        if let Some(sweep) = self.placings[key].sweep.as_ref().filter(|sweep| !sweep.is_last()) {
            placement.alternative = sweep.alternative;
        }
        self.placings.remove(key);
        placement
    }

    /// Handles a refusal, or a page of counts.
    fn handle_place_answer(
        &mut self,
        token: usize,
        tag: Tag,
        key: usize,
        outcome: Outcome,
        now: Time,
    ) -> Option<(Tag, PortReply)> {
        let mut placing = self.placings.remove(key);
        let mut next = None;
        match outcome {
            Outcome::Explained(page) => placing.add_page(&page),
            placed => match reply_of::<Result<Placement, _>, _>(placed) {
                Ok(_) => unreachable!("grants were handled before"),
                Err(Refused { refusal, .. }) => {
                    placing.refusals.push((placing.at, *refusal));
                    self.forget_stale(&mut placing);
                    next = self.choose(&placing).filter(|_| !is_planted(PlantedBug::SpillForgotten));
                    if next.is_none() && placing.next_sweep() {
                        next = self.choose(&placing);
                    }
                }
            },
        }
        let command = if let Some(shard) = next {
            self.spillbacks += 1;
            placing.asked.insert(shard);
            placing.at = shard;
            Command::Place(placing.request.clone())
        } else if let Some(page) = placing.next_page() {
            Command::Explain(Box::new(page))
        } else {
            self.pending.remove(token);
            return Some((tag, PortReply::Place(Err(merged(&placing.refusals)))));
        };
        let shard = placing.at;
        let origin = placing.origin();
        self.pending[token] = Pending::Place(tag, self.placings.insert(placing));
        self.send(shard, token, origin, command, now);
        None
    }

    /// Drops refusals of shards that grew since, once every shard has refused.
    ///
    /// A single shard's refusal is true at one instant by itself. Asking again would only let the request
    /// overtake later ones.
    fn forget_stale(&mut self, placing: &mut Placing) {
        let table = self.table.load();
        let shards = usize::from(table.shard_count());
        if shards == 1 || placing.refusals.len() < shards || placing.retries == 0 {
            return;
        }
        placing.retries -= 1;
        let asked = &mut placing.asked;
        let lower = &placing.lower;
        placing.refusals.retain(|(shard, refusal)| {
            // The shard grew, but its published facts still exclude the request. So the refusal is still
            // true.
            let facts = table.summary(*shard).read();
            let is_final = facts.growth == refusal.growth || !facts.highest.reaches(lower);
            if !is_final {
                asked.remove(*shard);
            }
            is_final
        });
    }
}
