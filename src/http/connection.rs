//! Sockets: accepts connections, gives each its time limits, and ends them when the gateway ends.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::Sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{Limits, body::Handover};

/// Who is at the other end of the socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The place of a connection among those that there may be at once. Whatever outlives its last answer keeps a copy.
#[derive(Clone, Debug)]
pub struct Place(#[expect(dead_code, reason = "it is held, not looked at")] Arc<OwnedSemaphorePermit>);

/// Serves `router` on `listener` until `abort`.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, abort: CancellationToken) {
    let mut connections = JoinSet::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut failures: u64 = 0;
    loop {
        let accepted = tokio::select! {
            () = abort.cancelled() => break,
            // Ended connections are let go of while others come.
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, peer, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer was gone already: the next one may do better.
                failures += 1;
                if failures.is_power_of_two() {
                    warn!(%error, failures, "a connection could not be accepted");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let router = router.clone();
        connections.spawn(async move {
            if let Err(error) = connection(stream, peer, Place(Arc::new(place)), router, limits).await {
                debug!(%error, %peer, "a connection ended early");
            }
        });
    }
    connections.shutdown().await;
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    place: Place,
    router: Router,
    limits: Limits,
) -> Result<(), hyper::Error> {
    let handover = Arc::new(Handover::default());
    // Small events must not wait for more of them.
    let _ = stream.set_nodelay(true);
    let wire = Wire { stream, handover: Arc::clone(&handover), stalled: None, patience: limits.write };
    let router = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(Arc::clone(&handover));
        request.extensions_mut().insert(place.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(wire), service)
        .with_upgrades();
    connection.await
}

/// A socket that gives up on a reader who takes nothing for `patience`, and tells when everything was written.
struct Wire {
    stream: TcpStream,
    handover: Arc<Handover>,
    stalled: Option<Pin<Box<Sleep>>>,
    patience: Duration,
}

impl Wire {
    /// The result of a write, or an error when the socket has been full for too long.
    fn patient<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.patient(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.patient(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called once the connection's own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.handover.written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
