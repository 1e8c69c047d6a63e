//! Closes a connection so that its peer hears of it even if data is still unsent.
//!
//! A CONNECTION_CLOSE is not subject to congestion control (RFC 9002, section 7 limits data in flight, which
//! a close is not). But quinn holds the close back while stream data waits behind a full congestion window.
//! After a close, quinn reads no acknowledgements, so the window never opens again. The peer hears nothing
//! and believes the connection is open until its idle timeout.
//!
//! A connection that is closed with unsent data therefore lifts its window first. After that, only the close
//! is sent.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn::{Connection, VarInt};
use quinn_proto::RttEstimator;

/// Creates the congestion controller of each connection: quinn's default, with a window that
/// [`close_at_once`] can lift.
pub(super) struct Liftable;

struct LiftableWindow {
    inner: Box<dyn Controller>,
    lifted: Arc<AtomicBool>,
}

impl ControllerFactory for Liftable {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::new(CubicConfig::default()).build(now, current_mtu);
        Box::new(LiftableWindow { inner, lifted: Arc::new(AtomicBool::new(false)) })
    }
}

impl Controller for LiftableWindow {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // Relaxed: the connection's lock orders the store before the close that reads it.
        if self.lifted.load(Ordering::Relaxed) { u64::MAX } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), lifted: Arc::clone(&self.lifted) })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Closes `connection` and tells its peer at once, even if data is unsent.
pub(super) fn close_at_once(connection: &Connection, code: u32, reason: &[u8]) {
    if let Ok(window) = connection.congestion_state().into_any().downcast::<LiftableWindow>() {
        // Relaxed: see `window`.
        window.lifted.store(true, Ordering::Relaxed);
    }
    connection.close(VarInt::from_u32(code), reason);
}
