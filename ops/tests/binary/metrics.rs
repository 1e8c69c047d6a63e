//! Metrics over HTTP, parsed as Prometheus does.

use std::collections::BTreeMap;

use crate::harness::{Service, Site};

/// Samples by name and labels, as written.
type Samples = BTreeMap<String, f64>;

/// Parses the text format. Every family must be described once, before its samples.
#[track_caller]
fn scrape(service: &Service) -> Samples {
    let (head, text) = service.http("/metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.to_ascii_lowercase().contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut types = BTreeMap::new();
    let mut samples = Samples::new();
    for line in body.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').expect("a name and a type");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "described twice: {name}");
        } else if !line.starts_with("# ") {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
            let name = sample.split('{').next().expect("a name");
            let counter = name
                .strip_suffix("_total")
                .is_some_and(|family| types.get(family).is_some_and(|t| t == "counter"));
            assert!(counter || types.get(name).is_some_and(|kind| kind == "gauge"), "no type: {line}");
            if let Some(labels) = sample.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                let inner =
                    labels.strip_prefix('{').and_then(|l| l.strip_suffix('}')).expect("labels in braces");
                assert!(inner.split(',').all(|pair| pair.contains("=\"") && pair.ends_with('"')), "{line}");
            }
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    samples
}

fn sum(samples: &Samples, name: &str) -> f64 {
    samples.iter().filter(|(sample, _)| sample.split('{').next() == Some(name)).map(|(_, value)| value).sum()
}

#[test]
fn metrics_follow_the_traffic() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2", "--metrics-listen", "127.0.0.1:0"]);
    let (head, body) = service.http("/healthz");
    assert!(head.starts_with("HTTP/1.1 200") && body == "ok\n", "{head}");
    assert!(service.http("/nothing").0.starts_with("HTTP/1.1 404"));
    let before = scrape(&service);
    assert_eq!((sum(&before, "wharf_placed_total"), sum(&before, "wharf_allocations")), (0.0, 0.0));

    service.run(&["node", "add", "n", "--cpu", "4", "--memory", "1GiB"]).with(0);
    let placed = service.json(&["place", "--cpu", "1.5"]);
    service.run(&["place", "--cpu", "0.5"]).with(0);
    service.run(&["release", placed["allocation"].as_str().unwrap()]).with(0);
    // A failed release is counted under its reason, even inside a batch.
    service.run(&["release", placed["allocation"].as_str().unwrap()]).with(1);
    service.run(&["place", "--cpu", "5"]).with(1);

    let after = scrape(&service);
    for (name, value) in [
        ("wharf_placed_total", 2.0),
        ("wharf_released_total", 1.0),
        ("wharf_nodes", 1.0),
        ("wharf_allocations", 1.0),
        ("wharf_connections_opened_total", 6.0),
        ("wharf_frames_refused_total", 0.0),
    ] {
        assert_eq!(sum(&after, name), value, "{name}");
    }
    assert!(sum(&after, "wharf_refused_total") >= 1.0 && sum(&after, "wharf_resident_bytes") > 1e6);
    for (sample, value) in [
        ("wharf_replies_total{kind=\"place\",reason=\"done\"}", 2.0),
        ("wharf_replies_total{kind=\"release_batch\",reason=\"done\"}", 1.0),
        ("wharf_replies_total{kind=\"release_batch\",reason=\"unknown_allocation\"}", 1.0),
        ("wharf_replies_total{kind=\"place\",reason=\"infeasible\"}", 1.0),
        ("wharf_resource{resource=\"cpu\",book=\"allocated\"}", 0.5),
        ("wharf_resource{resource=\"cpu\",book=\"total\"}", 4.0),
    ] {
        assert_eq!(after.get(sample), Some(&value), "{sample}: {after:#?}");
    }
    for stage in ["ring_wait", "step", "request"] {
        // All observations are included, even the last ones before the service became idle.
        assert!(
            after[&format!("wharf_latency_observations_total{{stage=\"{stage}\"}}")] >= 4.0,
            "{stage}: {after:#?}"
        );
        let quantile =
            |q: &str| after[&format!("wharf_latency_seconds{{stage=\"{stage}\",quantile=\"{q}\"}}")];
        let quantiles = ["0.5", "0.99", "0.999", "1"].map(quantile);
        assert!(quantiles.is_sorted() && quantiles[0] > 0.0 && quantiles[3] < 60.0, "{stage}: {quantiles:?}");
    }
    assert_eq!(sum(&scrape(&service), "wharf_placed_total"), 2.0);
    // Prometheus keeps its connection open, which must not delay a stop.
    let idle = std::net::TcpStream::connect(service.metrics.unwrap()).unwrap();
    service.stop();
    drop(idle);
}

#[test]
fn metrics_can_be_turned_off() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--metrics-listen", ""]);
    assert_eq!(service.metrics, None);
    service.run(&["status"]).with(0);
}
