//! Tests of turns: who is next, what is late, what is bounded.

use super::*;

const ONE: TenantId = TenantId(1);
const TWO: TenantId = TenantId(2);
const PORT_TURN_NS: u64 = 1_000;

fn request(operation: usize, due: Time, parts: u32) -> Waiting<u32> {
    Waiting::new(operation, due, Time(0), 0..parts)
}

/// Returns turns of which all units are taken.
fn taken(window: usize) -> Turns<u32> {
    let mut turns = Turns::new(1000);
    turns.set_window(window, PORT_TURN_NS);
    assert!(turns.take(window) && !turns.take(1));
    turns
}

/// Gives one unit back after the other. Returns the operations in order of their turns.
fn order(turns: &mut Turns<u32>, now: Time) -> Vec<usize> {
    let mut operations = Vec::new();
    loop {
        turns.give_back(1);
        match turns.next(now) {
            Some(Turn::Part(operation, _)) => operations.push(operation),
            Some(Turn::Late(operation)) => panic!("{operation} is late"),
            None => return operations,
        }
    }
}

#[test]
fn units_are_taken_at_once_while_nothing_waits() {
    let mut turns = Turns::new(4);
    assert!(turns.take(3) && !turns.take(2), "one is too few");
    turns.wait(ONE, 7, request(0, Time::NEVER, 1));
    assert!(!turns.take(1), "nobody overtakes who waits");
    assert_eq!(turns.next(Time(0)), Some(Turn::Part(0, 0)));
    assert_eq!(turns.next(Time(0)), None);
    turns.give_back(4);
    assert_eq!(turns.counts(), (4, 4, 0));
}

#[test]
fn a_window_that_shrinks_lets_nothing_in_until_enough_is_given_back() {
    let mut turns = Turns::<u32>::new(100);
    assert!(turns.take(50));
    turns.set_window(10, 0);
    assert!(!turns.take(1));
    turns.give_back(40);
    assert!(!turns.take(1));
    turns.give_back(1);
    assert!(turns.take(1) && !turns.take(1));
    turns.set_window(0, 0);
    turns.give_back(10);
    assert!(turns.take(1), "one is always let in");
    turns.set_window(1 << 20, 0);
    assert!(turns.take(99) && !turns.take(1), "never more than all");
}

/// A tenant with many connections has as many turns as one with one, and a connection with many requests as many as one
/// with one.
#[test]
fn turns_go_round_over_tenants_and_then_over_connections() {
    let mut turns = taken(1);
    for operation in 0..6 {
        turns.wait(ONE, 10, request(operation, Time::NEVER, 1));
    }
    turns.wait(ONE, 11, request(100, Time::NEVER, 1));
    turns.wait(ONE, 11, request(101, Time::NEVER, 1));
    for operation in 200..205 {
        turns.wait(TWO, 20, request(operation, Time::NEVER, 1));
    }
    let turns = order(&mut turns, Time(1));
    assert_eq!(turns, [0, 200, 100, 201, 1, 202, 101, 203, 2, 204, 3, 4, 5]);
}

#[test]
fn a_batch_has_one_turn_for_each_part() {
    let mut turns = taken(1);
    turns.wait(ONE, 1, request(0, Time::NEVER, 4));
    turns.wait(ONE, 2, request(1, Time::NEVER, 1));
    // It has begun, so what is due earlier waits for its end.
    assert_eq!(order(&mut turns, Time(1)), [0, 1, 0, 0, 0]);
    let mut turns = taken(1);
    turns.wait(ONE, 1, request(0, Time::NEVER, 2));
    turns.give_back(1);
    assert_eq!(turns.next(Time(0)), Some(Turn::Part(0, 0)));
    turns.wait(ONE, 1, request(1, Time(5), 1));
    assert_eq!(order(&mut turns, Time(1)), [0, 1]);
}

#[test]
fn within_a_connection_what_is_due_first_is_next() {
    let mut turns = taken(1);
    turns.wait(ONE, 1, request(0, Time::NEVER, 1));
    turns.wait(ONE, 1, request(1, Time(300), 1));
    turns.wait(ONE, 1, request(2, Time(100), 1));
    turns.wait(ONE, 1, request(3, Time(300), 1));
    turns.wait(ONE, 1, request(4, Time(LINE_PATIENCE_NS + 1), 1));
    turns.wait(ONE, 1, Waiting::new(5, Time::NEVER, Time(2), [0]));
    assert_eq!(
        order(&mut turns, Time(1)),
        [2, 1, 3, 0, 4, 5],
        "one without a deadline is not put off for ever"
    );
}

#[test]
fn what_is_late_has_no_turn_and_takes_none_from_others() {
    let mut turns = taken(1);
    turns.wait(ONE, 1, request(0, Time(100), 3));
    turns.wait(ONE, 1, request(1, Time(101), 1));
    turns.wait(TWO, 2, request(2, Time(100), 1));
    turns.wait(TWO, 2, request(3, Time(200), 1));
    turns.give_back(1);
    let next: Vec<_> = std::iter::from_fn(|| turns.next(Time(100))).collect();
    assert_eq!(next, [Turn::Late(0), Turn::Part(1, 0)], "its own connection is next");
    turns.give_back(1);
    let next: Vec<_> = std::iter::from_fn(|| turns.next(Time(100))).collect();
    assert_eq!(next, [Turn::Late(2), Turn::Part(3, 0)]);
    assert_eq!(turns.counts(), (999, 1000, 0));
    // What has begun is not late any more.
    let mut turns = taken(1);
    turns.wait(ONE, 1, request(0, Time(100), 2));
    turns.give_back(1);
    assert_eq!(turns.next(Time(99)), Some(Turn::Part(0, 0)));
    turns.give_back(1);
    assert_eq!(turns.next(Time(100)), Some(Turn::Part(0, 1)));
}

#[test]
fn lines_are_bounded_each_and_together() {
    let mut turns = taken(1);
    for operation in 0..LINE_REQUESTS_MAX {
        assert!(!turns.is_full(1));
        turns.wait(ONE, 1, request(operation, Time::NEVER, 1));
    }
    assert!(turns.is_full(1) && !turns.is_full(2));
    turns.wait(ONE, 2, request(0, Time::NEVER, LINES_PARTS_MAX as u32));
    assert!(turns.is_full(2));
}

/// Beyond the bound of all lines, each tenant may have an equal share of it, and so may each of its connections.
#[test]
fn beyond_the_bound_of_all_lines_those_are_full_that_have_their_share() {
    const SHARE: u32 = LINES_PARTS_MAX as u32 / 4;
    let mut turns = taken(1);
    turns.wait(ONE, 1, request(0, Time::NEVER, 3 * SHARE));
    turns.wait(TWO, 2, request(1, Time::NEVER, SHARE - 1));
    assert!(!turns.is_full(1), "one part is missing");
    turns.wait(TWO, 3, request(2, Time::NEVER, 1));
    assert!(turns.is_full(1), "it has more than the half of its tenant");
    assert!(!turns.is_full(2) && !turns.is_full(3), "two share the other half");
    turns.wait(TWO, 2, request(3, Time::NEVER, 1));
    assert!(turns.is_full(2));
    // A connection with nothing in its line is never full, even if all connections are of one tenant.
    assert!(!turns.is_full(4) && !turns.is_full(5));
    // Its turns bring it below its share, though as many wait as may.
    turns.wait(ONE, 6, request(4, Time::NEVER, LINES_PARTS_MAX as u32));
    turns.give_back(1);
    while turns.is_full(2) {
        assert!(matches!(turns.next(Time(1)), Some(Turn::Part(..))));
        turns.give_back(1);
    }
    assert!(turns.counts().2 >= LINES_PARTS_MAX);
}

/// Turns come every 2 ms. The time to wait follows from that and from who waits.
#[test]
fn the_time_to_wait_follows_from_the_measured_turns() {
    const TURN_NS: u64 = 2_000_000;
    let in_turns = |nanos: u64| (nanos + TURN_NS / 2) / TURN_NS;
    let mut turns = taken(2);
    assert_eq!(turns.expected_ns(ONE, 1, 1), 3 * PORT_TURN_NS, "nothing is measured, so the port tells it");
    let mut now = Time(0);
    for operation in 0..2100 {
        turns.wait(ONE, 1, request(operation, Time::NEVER, 1));
    }
    turns.measure(now);
    for _ in 0..2000 {
        now = now.plus_nanos(TURN_NS);
        turns.give_back(1);
        assert!(matches!(turns.next(now), Some(Turn::Part(..))));
        turns.measure(now);
    }
    // Two at the port, a hundred in the line, and itself.
    assert_eq!(in_turns(turns.expected_ns(ONE, 1, 1)), 103);
    // Another connection has every second turn, and so has a connection of another tenant.
    assert_eq!(in_turns(turns.expected_ns(ONE, 2, 1)), 2 + 2);
    assert_eq!(in_turns(turns.expected_ns(TWO, 3, 1)), 2 + 2);
    assert_eq!(turns.retry_after_ms(ONE, 1), 204);
    assert_eq!(turns.retry_after_ms(TWO, 3), 4);
    // While nobody waits, nothing is measured.
    while turns.counts().2 > 0 {
        turns.give_back(1);
        assert!(turns.next(now).is_some());
    }
    turns.measure(now);
    turns.measure(now.plus_nanos(1 << 50));
    assert_eq!(turns.turn_ns(), PORT_TURN_NS);
}
