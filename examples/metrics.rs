//! Serves the metrics of a client to Prometheus.
//!
//! ```text
//! cargo run --example metrics --features metrics
//! curl http://127.0.0.1:9000/metrics
//! ```

use std::error::Error;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use watchlock::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Before the client connects, because that makes its instruments.
    let recorder = install()?;
    let listener = TcpListener::bind("127.0.0.1:9000").await?;
    tokio::spawn(serve(listener, recorder));

    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = Client::connect(url).await?;
    let lock = client.get_lock("report");
    loop {
        let guard = lock.lock().await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        guard.unlock().await?;
    }
}

/// Records all metrics of this process. The slack gets buckets, for the alert on it.
pub(crate) fn install() -> Result<PrometheusHandle, BuildError> {
    let slack = Matcher::Full("watchlock_renewal_slack_ratio".into());
    let tenths = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
    PrometheusBuilder::new()
        .set_buckets_for_metric(slack, &tenths)?
        .install_recorder()
}

/// Answers each request with all metrics. A service has a route for it.
pub(crate) async fn serve(listener: TcpListener, recorder: PrometheusHandle) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let metrics = recorder.render();
        tokio::spawn(async move {
            let mut request = [0; 4096];
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n",
                metrics.len()
            );
            // A client that goes away misses the answer.
            if connection.read(&mut request).await.is_ok() {
                let _ = connection.write_all((head + &metrics).as_bytes()).await;
            }
        });
    }
}
