//! A proxy between a client and a service that can lose what the service sends.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a thread waits for a datagram before it looks whether it should end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Longer than any datagram.
const DATAGRAM_BYTES: usize = 1 << 16;

/// The flags of a running proxy.
#[derive(Default)]
struct Flags {
    loses_replies: AtomicBool,
    is_over: AtomicBool,
}

/// Forwards the datagrams of one client until it is dropped.
pub struct Proxy {
    /// Where the client connects to.
    pub address: SocketAddr,
    flags: Arc<Flags>,
}

impl Proxy {
    /// Starts a proxy to a service, which may stop and come back.
    pub fn to(service: SocketAddr) -> Self {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
            socket.set_read_timeout(Some(LOOK_AGAIN)).expect("not zero");
            Arc::new(socket)
        };
        let front = bind();
        let back = bind();
        let address = front.local_addr().expect("bound");
        let flags = Arc::new(Flags::default());
        let client = Arc::new(Mutex::new(service));
        let known = Arc::clone(&client);
        forward(&front, &back, &flags, move |_, from| {
            *known.lock().expect("no panic") = from;
            Some(service)
        });
        forward(&back, &front, &flags, move |flags, _| {
            let is_lost = flags.loses_replies.load(Ordering::SeqCst);
            (!is_lost).then(|| *client.lock().expect("no panic"))
        });
        Self { address, flags }
    }

    /// Sets whether what the service sends is lost.
    pub fn lose_replies(&self, are_lost: bool) {
        self.flags.loses_replies.store(are_lost, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.flags.is_over.store(true, Ordering::SeqCst);
    }
}

/// Starts a thread that sends what comes in at `from` on to where `route` says, given the sender.
fn forward(
    from: &Arc<UdpSocket>,
    to: &Arc<UdpSocket>,
    flags: &Arc<Flags>,
    route: impl Fn(&Flags, SocketAddr) -> Option<SocketAddr> + Send + 'static,
) {
    let from = Arc::clone(from);
    let to = Arc::clone(to);
    let flags = Arc::clone(flags);
    std::thread::spawn(move || {
        let mut datagram = vec![0; DATAGRAM_BYTES];
        while !flags.is_over.load(Ordering::SeqCst) {
            // An error is a wait that is over, or a service that is not there.
            let Ok((length, sender)) = from.recv_from(&mut datagram) else { continue };
            if let Some(receiver) = route(&flags, sender) {
                let _ = to.send_to(&datagram[..length], receiver);
            }
        }
    });
}
