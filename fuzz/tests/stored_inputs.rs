//! The stored inputs of every fuzz target find nothing. A finding of a target is stored here once it is mended.

use std::fmt::Display;

use wharf_fuzz::sim::{Settings, run_given};
use wharf_fuzz::{
    run_codec, run_config, run_connection, run_index_ops, run_journal, run_session_bytes, run_shard_ops,
    run_statement_ops, run_trace, stored_inputs,
};

fn find_nothing<E: Display>(target: &str, run: impl Fn(&[u8]) -> Result<(), E>) {
    for (name, input) in stored_inputs(target) {
        run(&input).unwrap_or_else(|found| panic!("fuzz/seeds/{target}/{name}: {found}"));
    }
}

#[test]
fn inputs_of_the_wire_find_nothing() {
    find_nothing("codec", run_codec);
    find_nothing("session_bytes", |input| run_session_bytes(input).map(drop));
    find_nothing("connection", |input| run_connection(input).map(drop));
}

#[test]
fn inputs_of_the_readers_find_nothing() {
    find_nothing("journal", run_journal);
    find_nothing("config", |input| run_config(input).map(drop));
    find_nothing("trace", |input| run_trace(input).map(drop));
}

#[test]
fn inputs_of_the_engine_find_nothing() {
    find_nothing("index_ops", run_index_ops);
    find_nothing("shard_ops", run_shard_ops);
    find_nothing("statement_ops", |input| run_statement_ops(input).map(drop));
    find_nothing("simulation", |input| {
        run_given(input, Settings::default())
            .found
            .map_or(Ok(()), |(step, found)| Err(format!("{step}: {found}")))
    });
}
