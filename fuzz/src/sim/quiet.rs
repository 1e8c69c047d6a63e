//! The phase without faults. Messages arrive, clients reconnect and ask again, and agents send heartbeats. At
//! its end everything is answered, no request waits that would fit, and released capacity is free.

use super::checkers::leases::leases_end_in_time;
use super::checkers::rest::everything_is_answered;
use super::checkers::sessions::cancels_are_kept;
use super::checkers::waiting::nothing_waits_that_would_fit;
use super::checkers::{Verdict, named};
use super::client::{Client, Role};
use super::network::Towards;
use super::script;
use super::world::World;

/// The number of rounds within which everything must be answered.
const ROUNDS_MAX: usize = 300;

/// A time in ns that is longer than any hold and any grace period here, but shorter than an agent may be
/// silent.
const GRACE: u64 = 10_000;

/// The number of planner deadlines to wait for: those of waiting groups, and as many of tickets.
const DEADLINES_MAX: usize = 16;

/// The highest number of looks at all groups before planners must have stopped making statements.
const LOOKS_MAX: usize = 16;

/// The time per round for which waiting reports are left alone, in ns.
const REPLACING: u64 = 100;

/// Brings the world to rest.
pub(super) fn settle(world: &mut World<'_>) -> Verdict {
    world.trace.line(format_args!("no more faults"));
    for client in &mut world.clients {
        client.is_hasty = false;
        if let Role::Agent { alive, .. } = &mut client.role {
            *alive = true;
        }
    }
    world.end_faults()?;
    answer_all(world)?;
    // Undecided holds reach their deadlines, and evicted allocations reach the end of their grace period.
    world.pass(GRACE);
    answer_all(world)?;
    named("leases_end_in_time", leases_end_in_time(&world.facts, world.now, GRACE))?;
    settle_groups(world)?;
    named("all_or_none", world.statements.all_or_none())?;
    world.check_owners()?;
    world.check_groups()?;
    // Without a planner, groups wait for the next start.
    if world.has_planners() {
        let open = world.clients.iter().map(Client::waiting_groups).sum();
        let what = "groups wait past their deadlines";
        named("everything_is_answered", everything_is_answered(open, what))?;
    }
    world.settle_follower()?;
    let waits = world.clients.iter().flat_map(Client::waits);
    let waiting = waits.filter_map(|(session, sequence)| world.server.placing(session, sequence));
    let waiting = nothing_waits_that_would_fit(waiting, &world.facts);
    named("nothing_waits_that_would_fit", waiting)?;
    for client in &world.clients {
        let waiting = client.waits().map(|(_, sequence)| sequence).collect();
        named("cancels_are_kept", cancels_are_kept(&waiting, &client.cancelled))?;
    }
    // Time passes here, so silent agents may lose their nodes.
    world.settle_jobs(answer_all)?;
    world.probe_queues(answer_all)?;
    end_waits(world)?;
    give_back(world)?;
    world.keep_run_times(answer_all)?;
    // What was released is charged to nobody.
    world.settle_jobs(answer_all)?;
    world.probe_queues(answer_all)?;
    world.restart()?;
    world.check_owners()
}

/// Lets waiting groups reach their deadlines, and lets queued tickets have their turn.
fn settle_groups(world: &mut World<'_>) -> Verdict {
    // A ticket served at the last deadline may place a group after it was looked at. The next ticket follows
    // only after a pause.
    for _ in 0..LOOKS_MAX {
        for _ in 0..DEADLINES_MAX {
            let Some(due) = world.next_planning() else { break };
            world.pass(due.nanos_since(world.now) + 1);
            answer_all(world)?;
        }
        let before = world.statements_made();
        world.gangs.look_at_all(world.now);
        answer_all(world)?;
        if world.statements_made() == before {
            break;
        }
    }
    Ok(())
}

/// Runs rounds of everything until only waiting requests have no reply.
fn answer_all(world: &mut World<'_>) -> Verdict {
    for round in 0..ROUNDS_MAX {
        for at in 0..world.clients.len() {
            if world.clients[at].connection.is_none() {
                let front = at % world.server.fronts.len();
                world.connect(at, front)?;
            }
            let client = &world.clients[at];
            let (Some(connection), open) = (client.connection, client.pending.keys().copied()) else {
                continue;
            };
            for frame in open.filter_map(|sequence| client.frame(sequence)).collect::<Vec<_>>() {
                world.network.send(connection, Towards::Server, frame);
            }
        }
        while world.network.len() > 0 {
            world.pass(1);
            world.deliver_at(0)?;
        }
        world.run_dry(true)?;
        while world.network.len() > 0 {
            world.pass(1);
            world.deliver_at(0)?;
        }
        if is_answered(world) {
            return Ok(());
        }
        if world.is_replacing() || !world.gangs.is_idle() || world.server.under_way() > 0 {
            // Blocking holds end with their deadlines, including those that nobody will decide. A job of a
            // group whose ticket meets such a hold is answered afterwards.
            world.pass(REPLACING);
        }
        if round == ROUNDS_MAX / 2
            && let Some(due) = world.next_planning()
        {
            // Growth that may not wait can still be bound to a ticket. It is answered when the ticket ends.
            world.pass(due.nanos_since(world.now) + 1);
        }
    }
    let open: usize = world.clients.iter().map(|client| client.open()).sum();
    let connected = world.clients.iter().filter(|client| client.connection.is_some()).count();
    let what = format!(
        "requests are without a reply; {connected} of {} clients are connected, {} requests are in the engine; \
         idle: coordinator {}, planners {}, callers {}",
        world.clients.len(),
        world.server.under_way(),
        world.coordinator.is_idle(),
        !world.is_planning(),
        world.gangs.is_idle()
    );
    let what = format!("{what}; callers wait for {:?}", world.gangs.asked());
    named("everything_is_answered", everything_is_answered(open.max(1), &what))
}

fn is_answered(world: &World<'_>) -> bool {
    let all = world.clients.iter().all(|client| {
        let mut pending = client.pending.values();
        client.connection.is_some() && pending.all(|pending| pending.asked.waits())
    });
    all && world.server.under_way() == 0
        && world.coordinator.is_idle()
        && !world.is_planning()
        && world.gangs.is_idle()
}

/// Cancels all waiting requests. Afterwards nothing is in flight anywhere.
fn end_waits(world: &mut World<'_>) -> Verdict {
    for client in &mut world.clients {
        let waits: Vec<u64> = client.pending.keys().copied().collect();
        for sequence in waits {
            let frame = script::ask_cancel(client, sequence);
            if let Some(connection) = client.connection {
                world.network.send(connection, Towards::Server, frame);
            }
        }
    }
    answer_all(world)?;
    let open: usize = world.clients.iter().map(|client| client.open()).sum();
    let open = open + usize::from(!world.ports_are_idle());
    named("everything_is_answered", everything_is_answered(open, "waits go on after they were taken back"))
}

/// Releases everything that clients were promised.
fn give_back(world: &mut World<'_>) -> Verdict {
    for at in 0..world.clients.len() {
        while let Some(frame) = script::release(&mut world.clients[at], &mut world.choices) {
            if let Some(connection) = world.clients[at].connection {
                world.network.send(connection, Towards::Server, frame);
            }
        }
    }
    for client in &mut world.clients {
        for group in client.groups.clone() {
            let frame = client.ask_removal(group);
            if let Some(connection) = client.connection {
                world.network.send(connection, Towards::Server, frame);
            }
        }
    }
    world.coordinator.release_all(world.now);
    world.gangs.give_back(world.now);
    answer_all(world)
}
