//! Tests of the service over real QUIC, and of its wire format byte for byte. They form one program, so that
//! it is linked once.

mod access;
mod books;
mod cancelled_waits;
mod codec_properties;
mod connections;
mod durable_waits;
mod events;
mod extremes;
mod floods;
mod follow;
mod golden_books;
mod golden_follow;
mod golden_frames;
mod golden_groups;
mod golden_leases;
mod golden_numbers;
mod golden_reservations;
mod group_conversion;
mod groups;
mod harness;
mod hostile_peer;
mod interrupted_waits;
mod large_requests;
mod leases;
mod long_waits;
mod loopback;
mod overload;
mod refusals;
mod reservations;
mod resume;
mod sessions;
mod shutdown;
mod statements;
mod versions;
mod waiting;
