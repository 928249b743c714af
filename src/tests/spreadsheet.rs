//! A large workbook through the whole gateway: what it holds is told, and the gateway's memory hardly grows.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use serde_json::json;
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::support::{
    gateway::Gateway,
    model_server::{ModelServer, Say, call, text},
};

const ROWS: u32 = 100_000;

/// An xlsx of 100,000 rows below a row of names, as exporters write it: words in a shared table, numbers, dates.
fn write_workbook(path: &Path) {
    let rels = "http://schemas.openxmlformats.org/package/2006/relationships";
    let office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let mut zip = ZipWriter::new(BufWriter::new(File::create(path).expect("a file")));
    let mut part = |name: &str, write: &mut dyn FnMut(&mut dyn Write)| {
        zip.start_file(name, SimpleFileOptions::default()).expect("a part");
        let mut buffered = BufWriter::with_capacity(1 << 16, &mut zip);
        write(&mut buffered);
        buffered.flush().expect("it is written");
    };
    let mut whole =
        |name: &str, content: String| part(name, &mut |to| to.write_all(content.as_bytes()).expect("written"));
    whole(
        "[Content_Types].xml",
        "<Types xmlns=\"http://schemas.openxmlformats.org/package/2006/content-types\"/>".to_owned(),
    );
    whole(
        "_rels/.rels",
        format!(
            "<Relationships xmlns=\"{rels}\"><Relationship Id=\"r1\" Type=\"{office}/officeDocument\" Target=\"xl/workbook.xml\"/></Relationships>"
        ),
    );
    whole(
        "xl/workbook.xml",
        format!(
            "<workbook xmlns=\"{main}\" xmlns:r=\"{office}\"><sheets><sheet name=\"Orders\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
        ),
    );
    whole(
        "xl/_rels/workbook.xml.rels",
        format!(
            "<Relationships xmlns=\"{rels}\"><Relationship Id=\"r1\" Type=\"{office}/worksheet\" Target=\"worksheets/sheet1.xml\"/></Relationships>"
        ),
    );
    whole(
        "xl/styles.xml",
        format!(
            "<styleSheet xmlns=\"{main}\"><cellXfs><xf numFmtId=\"0\"/><xf numFmtId=\"14\"/></cellXfs></styleSheet>"
        ),
    );
    // Each order has a text of its own, and one of four cities.
    part("xl/sharedStrings.xml", &mut |to| {
        write!(to, "<sst xmlns=\"{main}\" uniqueCount=\"{}\">", ROWS + 8).expect("written");
        for name in ["Order", "City", "Amount", "Day", "上海", "北京", "Berlin", "Oslo"] {
            write!(to, "<si><t>{name}</t></si>").expect("written");
        }
        for n in 1..=ROWS {
            write!(to, "<si><t>ORD-{n:07}</t></si>").expect("written");
        }
        write!(to, "</sst>").expect("written");
    });
    part("xl/worksheets/sheet1.xml", &mut |to| {
        write!(to, "<worksheet xmlns=\"{main}\"><sheetData><row r=\"1\">").expect("written");
        for (n, column) in ["A", "B", "C", "D"].iter().enumerate() {
            write!(to, "<c r=\"{column}1\" t=\"s\"><v>{n}</v></c>").expect("written");
        }
        write!(to, "</row>").expect("written");
        for n in 1..=ROWS {
            let (row, order, city, day) = (n + 1, n + 7, 4 + n % 4, 46_000 + n % 365);
            write!(to, "<row r=\"{row}\"><c r=\"A{row}\" t=\"s\"><v>{order}</v></c><c r=\"B{row}\" t=\"s\"><v>{city}</v></c><c r=\"C{row}\"><v>{n}</v></c><c r=\"D{row}\" s=\"1\"><v>{day}</v></c></row>").expect("written");
        }
        write!(to, "</sheetData></worksheet>").expect("written");
    });
    zip.finish().expect("a file").flush().expect("it is written");
}

/// The most memory the process ever had, in KiB.
#[cfg(target_os = "linux")]
fn peak(gateway: &Gateway) -> u64 {
    let pid = gateway.pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it is told");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_hundred_thousand_rows_are_summarised_in_little_memory() {
    let model = ModelServer::start(|ask| match ask.round() {
        0 if ask.said().contains("orders") => {
            Say::Calls(vec![call("c1", "read_excel", &json!({ "file_path": "orders.xlsx" }).to_string())])
        }
        _ => text(format!("it says: {}", ask.results().join("|"))),
    })
    .await;
    let gateway = Gateway::start(&model.section()).await;
    write_workbook(&gateway.workspace().join("orders.xlsx"));
    gateway.answer("hello", None).await;
    let before = peak(&gateway);
    let told = gateway.answer("sum up the orders", None).await;
    let more = peak(&gateway) - before;
    println!("summarising {ROWS} rows took {more} KiB more at its peak");
    for expected in [
        "100001 rows × 4 columns, 400004 filled cells",
        "Row 1 holds the names; 100000 rows of data below it.",
        "A `Order`: text; 100000 filled, 0 empty; more than 200 different",
        "B `City`: text; 100000 filled, 0 empty; 4 different",
        "C `Amount`: numbers; 100000 filled, 0 empty; min 1, max 100000, sum 5000050000, mean 50000.5",
        "from 2025-12-09 to 2026-12-08",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(more <= 64 * 1024, "{more} KiB");
}
