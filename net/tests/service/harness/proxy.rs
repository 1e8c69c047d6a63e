//! A proxy between one client and a server, which can cut them off from each other.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// Longer than any datagram.
const DATAGRAM_BYTES: usize = 1 << 16;

/// Forwards the datagrams of one client until it is cut or dropped.
pub struct Proxy {
    /// Where the client connects to.
    pub address: SocketAddr,
    forwarding: JoinHandle<()>,
    /// They stay open, so that nobody is told that they answer no more.
    _sockets: [Arc<UdpSocket>; 2],
}

impl Proxy {
    pub async fn to(server: SocketAddr) -> Self {
        let bind = async || {
            let socket = UdpSocket::bind("127.0.0.1:0").await;
            Arc::new(socket.expect("the loopback has a free port"))
        };
        let front = bind().await;
        let back = bind().await;
        back.connect(server).await.expect("it is an address");
        let address = front.local_addr().expect("it is bound");
        let forwarding = tokio::spawn(forward(Arc::clone(&front), Arc::clone(&back)));
        Self { address, forwarding, _sockets: [front, back] }
    }

    /// Loses all datagrams from now on, in both directions.
    pub fn cut(&self) {
        self.forwarding.abort();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn forward(front: Arc<UdpSocket>, back: Arc<UdpSocket>) {
    let mut client = None;
    let mut to_server = vec![0; DATAGRAM_BYTES];
    let mut to_client = vec![0; DATAGRAM_BYTES];
    loop {
        // An error is a peer that is gone: its datagrams are lost.
        tokio::select! {
            Ok((bytes, from)) = front.recv_from(&mut to_server) => {
                client = Some(from);
                let _ = back.send(&to_server[..bytes]).await;
            }
            Ok(bytes) = back.recv(&mut to_client) => {
                if let Some(client) = client {
                    let _ = front.send_to(&to_client[..bytes], client).await;
                }
            }
            else => {}
        }
    }
}
