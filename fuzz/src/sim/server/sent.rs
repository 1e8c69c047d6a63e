//! Checks of what the service sends, and of what it holds for the journal.

use wharf_core::ids::SessionId;
use wharf_net::codec::{FLAG_ERROR, FrameRef, Header, decode_body, decode_frame};
use wharf_net::protocol::{FRAME_BYTES_MAX, Fault, HelloReply, Kind, PlaceReply, Reason};

use super::{Event, Server};
use crate::sim::checkers::sessions::sessions_are_kept;
use crate::sim::client::is_for_now;
use crate::sim::network::{Network, Towards};

impl Server {
    /// Notes the replies that wait for the journal. Each may leave as soon as its position is durable.
    pub(super) fn note_held(&mut self) {
        for link in self.links.values() {
            let front = &self.fronts[link.front];
            let Some(session) = front.session_id(link.key) else { continue };
            for (position, bytes) in front.held(link.key) {
                let mut rest = &bytes[..];
                while let Ok(Some(frame)) = decode_frame(rest, FRAME_BYTES_MAX) {
                    let (sent, left) = rest.split_at(frame.bytes);
                    rest = left;
                    if is_outcome(&frame) {
                        self.replies.add((session, frame.header.sequence), position, sent);
                    }
                }
                assert!(rest.is_empty(), "whole frames are held");
            }
        }
    }

    /// Checks a frame that the service sends, and passes it on to the network.
    pub(super) fn handle_sent(
        &mut self,
        number: u64,
        frame: &FrameRef<'_>,
        bytes: &[u8],
        network: &mut Network,
    ) {
        let Header { kind, flags, sequence, .. } = frame.header;
        let link = self.links.get_mut(&number).expect("it sends");
        if kind == Kind::Hello.number() {
            return match decode_body::<HelloReply>(frame.payload) {
                Ok((reply, _)) if flags & FLAG_ERROR == 0 => {
                    let session = (reply.session.into(), reply.token);
                    link.session = Some(session.0);
                    self.events.push(Event::Welcome(number, session));
                }
                _ => {
                    let (fault, _) = decode_body(frame.payload).expect("a hello has a reply or a fault");
                    let is_superseded = link.resumes.is_some_and(|session| self.newest[&session] != number);
                    let kept = sessions_are_kept(&fault, is_superseded);
                    self.events.extend(kept.err().map(|found| Event::Broken("sessions_are_kept", found)));
                }
            };
        }
        if !link.is_lost {
            network.send(number, Towards::Client, bytes.to_vec());
        }
        let session = link.session.expect("replies follow the hello");
        if !is_outcome(frame) {
            return;
        }
        if let Some(journal) = self.fronts[link.front].port.journal() {
            self.replies.add((session, sequence), journal.durable(), bytes);
        }
        let is_first = self.outcomes.record((session, sequence), bytes);
        if let Err(found) = self.outcomes.check((session, sequence), bytes) {
            self.events.push(Event::Broken("one_outcome_per_request", found));
        } else if is_first && kind == Kind::Place.number() {
            self.handle_outcome(session, frame);
        } else if is_first {
            let kept = self.groups.handle_outcome((session, sequence), frame);
            self.events.extend(kept.err().map(|found| Event::Broken("groups_have_one_request", found)));
        }
    }

    /// Handles the first outcome of a placement.
    fn handle_outcome(&mut self, session: SessionId, frame: &FrameRef<'_>) {
        let sequence = frame.header.sequence;
        let placing = self.placing.remove(&(session, sequence));
        let Ok((reply, _)) = decode_body::<PlaceReply>(frame.payload) else { return };
        if let Some(placed) = reply.placed {
            return self.events.push(Event::Granted(session, sequence, placed.allocation.into()));
        }
        let is_refused = [Reason::NoFitNow, Reason::Infeasible].iter().any(|&no| reply.reason == no.into());
        if let Some((request, offers)) = placing.filter(|_| is_refused) {
            let found = offers.check_refused(&request).err();
            self.events.extend(found.map(|found| Event::Broken("no_refusal_while_a_node_offers", found)));
        }
    }
}

/// Returns whether a frame is the outcome of a request, which its session keeps.
fn is_outcome(frame: &FrameRef<'_>) -> bool {
    let kind = Kind::from_number(frame.header.kind).expect("clients here send known kinds");
    kind != Kind::Hello && !kind.only_looks() && !is_refused_frame(frame)
}

/// Returns whether a frame says that a request was not executed because of its sequence or its deadline.
fn is_refused_frame(frame: &FrameRef<'_>) -> bool {
    let of_sequences = [Reason::StaleSequence, Reason::SequenceOutOfWindow];
    frame.header.flags & FLAG_ERROR != 0
        && decode_body::<Fault>(frame.payload).is_ok_and(|(fault, _)| {
            is_for_now(&fault) || of_sequences.iter().any(|&reason| fault.reason == reason.into())
        })
}
