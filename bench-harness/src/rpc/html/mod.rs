//! The report: one page with a table and plots, which needs no network.

mod plots;

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;

use super::RpcRow;
use crate::figures::Origin;
use plots::{Plot, Series, XAxis, YAxis};

const STYLE: &str = "body{font-family:sans-serif;margin:2em auto;max-width:72em}\
    table{border-collapse:collapse;font-size:85%}\
    td,th{padding:.25em .6em;border-bottom:1px solid #ccc;text-align:right}\
    td:first-child,th:first-child{text-align:left}\
    .plots{display:flex;flex-wrap:wrap;gap:1em}";

/// Writes the report of a run to `file`.
///
/// # Errors
/// When the file cannot be written.
pub fn write_report(file: &Path, rows: &[RpcRow], origin: &Origin) -> anyhow::Result<()> {
    let page = page(rows, origin)?;
    std::fs::write(file, page).with_context(|| format!("the report cannot be written to {}", file.display()))
}

fn page(rows: &[RpcRow], origin: &Origin) -> anyhow::Result<String> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>wharf-bench rpc</title><style>{STYLE}</style></head>\n<body><h1>wharf-bench rpc</h1>\n"
    );
    writeln!(
        page,
        "<p>Requests to the service over QUIC, next to a bare QUIC echo (the floor) in the same run. {}</p>",
        escaped(&origin.to_string())
    )?;
    page.push_str(&table(rows));
    let sections = [
        ("Latency by percentile", percentile_plots(rows)),
        ("Latency against offered load", load_plots(rows)),
        ("Throughput against shards", shard_plots(rows)),
    ];
    for (title, plots) in sections {
        writeln!(page, "<h2>{title}</h2>")?;
        if plots.is_empty() {
            page.push_str("<p>This run has no such rows.</p>\n");
            continue;
        }
        page.push_str("<div class=\"plots\">\n");
        for plot in plots {
            page.push_str(&plot.draw()?);
        }
        page.push_str("</div>\n");
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn table(rows: &[RpcRow]) -> String {
    let heads = [
        "load",
        "shards",
        "requests/s",
        "floor/s",
        "ratio",
        "p50 µs",
        "floor",
        "p99 µs",
        "floor",
        "p99.99 µs",
        "floor",
        "server µs",
        "client µs",
        "plain/s",
        "× plain",
        "fullest thread",
        "target",
        "judged",
    ];
    let mut table = String::from("<table><tr>");
    heads.iter().for_each(|head| table.push_str(&format!("<th>{head}</th>")));
    table.push_str("</tr>\n");
    for row in rows {
        let own = row.latency_ns;
        let floor = row.floor_latency_ns;
        let judged = row.judged.map_or_else(String::new, |judged| format!("{judged:.2}"));
        let cells = [
            row.describe(),
            row.shards.to_string(),
            format!("{:.0}", row.requests_per_second),
            format!("{:.0}", row.floor_per_second),
            format!("{:.2}", row.ratio_to_floor),
            format!("{:.1}", micros(own.p50)),
            format!("{:.1}", micros(floor.p50)),
            format!("{:.1}", micros(own.p99)),
            format!("{:.1}", micros(floor.p99)),
            format!("{:.1}", micros(own.p9999)),
            format!("{:.1}", micros(floor.p9999)),
            format!("{:.2}", row.server_cpu_us_per_request),
            format!("{:.2}", row.client_cpu_us_per_request),
            row.plain_per_second.map_or_else(String::new, |plain| format!("{plain:.0}")),
            row.ratio_to_plain.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.limits.to_string(),
            row.target.map_or_else(String::new, |target| target.to_string()),
            judged,
        ];
        table.push_str("<tr>");
        cells.iter().for_each(|cell| table.push_str(&format!("<td>{}</td>", escaped(cell))));
        table.push_str("</tr>\n");
    }
    table.push_str("</table>\n");
    table
}

/// One plot per row: the service and its floor.
fn percentile_plots(rows: &[RpcRow]) -> Vec<Plot> {
    let points =
        |curve: &[super::CurvePoint]| curve.iter().map(|point| (point.nines, micros(point.ns))).collect();
    rows.iter()
        .filter(|row| row.curve.len() > 1)
        .map(|row| Plot {
            title: format!("{}, {} shards", row.describe(), row.shards),
            x: XAxis::Percentile,
            y: YAxis::Microseconds,
            series: vec![
                Series { name: "service".to_owned(), points: points(&row.curve) },
                Series { name: "floor".to_owned(), points: points(&row.floor_curve) },
            ],
        })
        .collect()
}

/// Rows that differ in one figure only, in the order of that figure.
fn families<'a, K: PartialEq>(
    rows: impl Iterator<Item = &'a RpcRow>,
    key: impl Fn(&RpcRow) -> K,
) -> Vec<Vec<&'a RpcRow>> {
    let mut families: Vec<(K, Vec<&RpcRow>)> = Vec::new();
    for row in rows {
        let of = key(row);
        match families.iter_mut().find(|(known, _)| *known == of) {
            Some((_, family)) => family.push(row),
            None => families.push((of, vec![row])),
        }
    }
    families.into_iter().map(|(_, family)| family).collect()
}

/// One plot per rule of arrivals, mode and number of shards.
fn load_plots(rows: &[RpcRow]) -> Vec<Plot> {
    let open = rows.iter().filter(|row| row.offered_per_second.is_some());
    let families = families(open, |row| (row.arrivals, row.mode, row.shards, row.connections, row.batch));
    let plot = |mut family: Vec<&RpcRow>| {
        let offered = |row: &RpcRow| row.offered_per_second.unwrap_or_default();
        family.sort_by(|one, next| offered(one).total_cmp(&offered(next)));
        let first = family[0];
        let series = |name: &str, of: &dyn Fn(&RpcRow) -> u64| Series {
            name: name.to_owned(),
            points: family.iter().map(|row| (offered(row) / 1e3, micros(of(row)))).collect(),
        };
        Plot {
            title: format!("{}, {}, {} shards", first.arrivals.unwrap_or_default(), first.mode, first.shards),
            x: XAxis::Number("offered, thousand requests per second"),
            y: YAxis::Microseconds,
            series: vec![
                series("service p50", &|row| row.latency_ns.p50),
                series("service p99", &|row| row.latency_ns.p99),
                series("service p99.99", &|row| row.latency_ns.p9999),
                series("floor p50", &|row| row.floor_latency_ns.p50),
                series("floor p99", &|row| row.floor_latency_ns.p99),
                series("floor p99.99", &|row| row.floor_latency_ns.p9999),
            ],
        }
    };
    families.into_iter().map(plot).collect()
}

/// One plot of all closed loops, a series for each.
fn shard_plots(rows: &[RpcRow]) -> Vec<Plot> {
    let closed = rows.iter().filter(|row| row.offered_per_second.is_none());
    let mut series = Vec::new();
    for mut family in families(closed, RpcRow::describe) {
        family.sort_by_key(|row| row.shards);
        let points = family.iter().map(|row| (f64::from(row.shards), row.requests_per_second / 1e3));
        series.push(Series { name: family[0].describe(), points: points.collect() });
    }
    if series.is_empty() {
        return Vec::new();
    }
    let title = "closed loops".to_owned();
    vec![Plot { title, x: XAxis::Number("shards"), y: YAxis::Number("thousand requests per second"), series }]
}
