//! Files as people have them, and files made to hurt.

use std::io::{Cursor, Write};

use serde_json::json;
use zip::{ZipWriter, write::SimpleFileOptions};

use super::*;
use crate::tools::{Parts, Registry, fixture::Fixture};

const XLSX: &[u8] = include_bytes!("fixtures/small.xlsx");
const XLS: &[u8] = include_bytes!("fixtures/small.xls");
const ODS: &[u8] = include_bytes!("fixtures/small.ods");

async fn read(house: &Fixture, args: Value) -> Result<String, String> {
    house.run(&Spreadsheet::default(), args).await
}

/// An xlsx of one sheet with these rows of XML and these shared strings.
fn xlsx(rows: &str, strings: &str) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let rels = "http://schemas.openxmlformats.org/package/2006/relationships";
    let office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    for (name, content) in [
        (
            "[Content_Types].xml",
            "<Types xmlns=\"http://schemas.openxmlformats.org/package/2006/content-types\"/>".to_owned(),
        ),
        (
            "_rels/.rels",
            format!(
                "<Relationships xmlns=\"{rels}\"><Relationship Id=\"r1\" Type=\"{office}/officeDocument\" Target=\"xl/workbook.xml\"/></Relationships>"
            ),
        ),
        (
            "xl/workbook.xml",
            format!(
                "<workbook xmlns=\"{main}\" xmlns:r=\"{office}\"><sheets><sheet name=\"Sheet1\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
            ),
        ),
        (
            "xl/_rels/workbook.xml.rels",
            format!(
                "<Relationships xmlns=\"{rels}\"><Relationship Id=\"r1\" Type=\"{office}/worksheet\" Target=\"worksheets/sheet1.xml\"/></Relationships>"
            ),
        ),
        ("xl/sharedStrings.xml", strings.to_owned()),
        (
            "xl/worksheets/sheet1.xml",
            format!(
                "<?xml version=\"1.0\"?><worksheet xmlns=\"{main}\"><dimension ref=\"A1:XFD1048576\"/><sheetData>{rows}</sheetData></worksheet>"
            ),
        ),
    ] {
        writer.start_file(name, SimpleFileOptions::default()).expect("a part");
        writer.write_all(content.as_bytes()).expect("it is written");
    }
    writer.finish().expect("a file").into_inner()
}

#[tokio::test]
async fn a_workbook_is_summarised_column_by_column() {
    let house = Fixture::new();
    house.put("s.xlsx", XLSX);
    let told = read(&house, json!({"path": "s.xlsx"})).await.expect("it is read");
    assert!(told.starts_with("Sheet `Sales`, 1 of 3 (also `Old` hidden, `表 三`)\n"), "{told}");
    assert!(
        told.contains("\nRow 1 holds the names; 6 rows of data below it.\n") || told.contains("Row 1 holds the names"),
        "{told}"
    );
    assert!(told.contains("A `City`: text; 4 filled") && told.contains("Berlin ×2"), "{told}");
    assert!(
        told.contains("B `Amount`: numbers; 4 filled") && told.contains("min 0.1, max 20, sum 30.8, mean 7.7"),
        "{told}"
    );
    assert!(told.contains("C `Day`: dates; 4 filled") && told.contains("from 2026-03-02 to 2026-03-05"), "{told}");
    assert!(told.contains("F: text; 1 filled"), "{told}");
}

#[tokio::test]
async fn ranges_come_as_a_table_and_formulas_beside_their_values() {
    let house = Fixture::new();
    house.put("s.xlsx", XLSX).put("s.xls", XLS).put("s.ods", ODS);
    let rows = |path: &str, range: &str| json!({"path": path, "range": range});
    let told = read(&house, rows("s.xlsx", "A1:C3")).await.expect("it is read");
    assert!(
        told.ends_with(
            "\n | A | B | C\n1 | City | Amount | Day\n2 | Berlin | 10.5 | 2026-03-02\n3 | 上海 | 20 | 2026-03-03\n"
        ),
        "{told}"
    );
    let told = read(&house, rows("s.xlsx", "5:7")).await.expect("it is read");
    assert!(told.contains("5 | Köln \\| West | 0.2 | 2026-03-05\n7 |  |  |  | far\n"), "{told}");
    let told = read(&house, rows("s.xlsx", "'表 三'!A1")).await.expect("it is read");
    assert!(told.contains("1 | 一⏎二\n"), "{told}");
    let told = read(&house, json!({"path": "s.xlsx", "sheet": "old", "mode": "rows"})).await.expect("it is read");
    assert!(told.contains("2 | TRUE\n3 | 09:30:00\n"), "{told}");
    let told = read(&house, json!({"path": "s.xlsx", "mode": "formulas"})).await.expect("it is read");
    assert!(told.contains("D2: (no value stored) =B2*2\n"), "{told}");
    let told = read(&house, json!({"path": "s.xls", "mode": "formulas"})).await.expect("it is read");
    assert!(told.contains("B7: ") && told.contains("=SUM(B2:B6)"), "{told}");
    let told = read(&house, rows("s.xls", "A2:C3")).await.expect("it is read");
    assert!(told.contains("2 | 城市1 | 1.5 | 2026-03-01\n3 | 城市2 | 3 | 2026-03-02\n"), "{told}");
    let told = read(&house, json!({"path": "s.ods", "mode": "formulas"})).await.expect("it is read");
    assert!(told.contains("B5: 9 =SUM(B2:B4)\n"), "{told}");
    let told = read(&house, json!({"path": "s.ods"})).await.expect("it is read");
    assert!(told.contains("C `Day`: dates; 3 filled") && told.contains("sum 18"), "{told}");
}

#[tokio::test]
async fn sheets_are_listed_with_their_sizes_and_found_by_name_or_number() {
    let house = Fixture::new();
    house.put("s.xlsx", XLSX).put("s.xls", XLS).put("s.ods", ODS);
    let sheets = |path: &str| json!({"path": path, "mode": "sheets"});
    assert_eq!(
        read(&house, sheets("s.xlsx")).await.expect("it is read"),
        "1. `Sales`: 7 rows × 6 columns, 17 filled cells\n2. `Old`, hidden: 3 rows × 2 columns, 2 filled cells\n\
         3. `表 三`: 1 rows × 1 columns, 1 filled cells\n"
    );
    assert!(read(&house, sheets("s.xls")).await.expect("it is read").contains("2. `Zwei`: 1 rows"));
    assert!(read(&house, sheets("s.ods")).await.expect("it is read").contains("2. `Leer`: empty\n"));
    let told = read(&house, json!({"path": "s.xlsx", "sheet": "3", "range": "A1"})).await.expect("by number");
    assert!(told.starts_with("Sheet `表 三`, 3 of 3"), "{told}");
    let refused = read(&house, json!({"path": "s.xlsx", "sheet": "Costs"})).await.expect_err("no such sheet");
    assert_eq!(refused, "There is no sheet `Costs`. The sheets are: `Sales`, `Old`, `表 三`.");
    let refused = read(&house, json!({"path": "s.xlsx", "range": "here"})).await.expect_err("no range");
    assert!(refused.contains("`here` is no range"), "{refused}");
}

#[tokio::test]
async fn text_tables_are_read_in_every_encoding() {
    let house = Fixture::new();
    let text = "城市;金额;电话\n上海;12,5;013800138000\n北京;7;\"a;b\"\n";
    house.put("g.csv", encoding_rs::GB18030.encode(text).0).put("u.csv", format!("\u{feff}{text}"));
    house.put("t.tsv", text.replace(';', "\t"));
    let utf16: Vec<u8> = std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    house.put("w.csv", utf16);
    for (path, note) in
        [("g.csv", "encoding GB18030"), ("u.csv", "UTF-8 with BOM"), ("w.csv", "UTF-16LE"), ("t.tsv", "tabs")]
    {
        let told = read(&house, json!({"path": path, "mode": "rows"})).await.expect(path);
        assert!(told.contains("1 | 城市 | 金额 | 电话\n2 | 上海 | 12,5 | 013800138000\n"), "{path}: {told}");
        assert!(told.contains(note), "{path}: {told}");
    }
    let told = read(&house, json!({"path": "g.csv"})).await.expect("it is read");
    assert!(told.contains("C `电话`: text; 2 filled"), "a telephone number is no number: {told}");
}

#[tokio::test]
async fn a_long_sheet_comes_in_pages() {
    let mut house = Fixture::new();
    house.ctx.output_chars = 2_000;
    let rows: String = (1..=500).map(|n| format!("{n},row number {n}\n")).collect();
    house.put("l.csv", rows);
    let mut range = "A1:B500".to_owned();
    let mut seen = 0;
    loop {
        let told = read(&house, json!({"path": "l.csv", "range": range})).await.expect("a page");
        seen += told.lines().filter(|line| line.contains("row number")).count();
        let Some(next) = told.split("go on with range ").nth(1) else { break };
        range = next.split(']').next().expect("a range").to_owned();
    }
    assert_eq!(seen, 500);
    let told = read(&house, json!({"path": "l.csv", "range": "5:6"})).await.expect("two rows");
    assert!(told.ends_with("5 | 5 | row number 5\n6 | 6 | row number 6\n"), "{told}");
}

#[tokio::test]
async fn files_that_would_fill_the_memory_are_refused() {
    let house = Fixture::new();
    let one = "<row r=\"1\"><c r=\"A1\"><v>1</v></c></row>";
    // A sheet that claims everything and has two far corners is read like any other.
    let far = format!("{one}<row r=\"1048576\"><c r=\"XFD1048576\" t=\"inlineStr\"><is><t>end</t></is></c></row>");
    house.put("far.xlsx", xlsx(&far, "<sst/>"));
    let told = read(&house, json!({"path": "far.xlsx"})).await.expect("it is read");
    assert!(told.contains("1048576 rows × 16384 columns, 2 filled cells"), "{told}");
    house.put("claims.xlsx", xlsx(one, "<sst uniqueCount=\"99999999999999\"><si><t>a</t></si></sst>"));
    house.put("text.xlsx", xlsx(&format!("<row><c t=\"str\"><v>{}</v></c></row>", "a".repeat(3 << 20)), "<sst/>"));
    house.put("cut.xlsx", &XLSX[..3000]).put("cut.xls", &XLS[..2000]).put("cut.ods", &ODS[..900]);
    house.put("html.xls", "<html><table><tr><td>1</td></tr></table></html>").put("p.xlsx", b"\x89PNG\r\n\x1a\n123");
    // An old file whose Dimensions record claims 2^32 rows of 65,535 columns.
    let mut claims = XLS.to_vec();
    let at = claims.windows(4).position(|window| window == [0, 2, 14, 0]).expect("it has dimensions");
    claims[at + 8..at + 12].fill(0xff);
    claims[at + 14..at + 16].fill(0xff);
    house.put("claims.xls", claims);
    let told = read(&house, json!({"path": "claims.xls", "mode": "rows"})).await.expect("it is read");
    assert!(told.contains("城市1 | 1.5"), "{told}");
    // 3 MiB of `<` in a comment, packed into a few hundred bytes.
    house.put("comment.xlsx", xlsx(&format!("<!--{}-->{one}", "<".repeat(3 << 20)), "<sst/>"));
    for (path, why) in [
        ("claims.xlsx", "claims more than"),
        ("text.xlsx", "single text"),
        ("comment.xlsx", "single text"),
        ("cut.xlsx", "cannot be used"),
        ("cut.xls", "cannot be used"),
        ("cut.ods", "cannot be used"),
        ("html.xls", "`read` shows it"),
        ("p.xlsx", "PNG image"),
    ] {
        let refused = read(&house, json!({"path": path})).await.expect_err(path);
        assert!(refused.contains(why), "{path}: {refused}");
    }
}

#[tokio::test]
async fn damage_anywhere_ends_in_words() {
    let house = Fixture::new();
    for (name, whole) in [("d.xlsx", XLSX), ("d.xls", XLS), ("d.ods", ODS)] {
        for at in (0..whole.len()).step_by(whole.len() / 60) {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 0x55;
            house.put(name, bytes);
            // Whether it can be read is the format's affair; that there is an answer is ours.
            let _ = read(&house, json!({"path": name})).await;
        }
    }
}

#[tokio::test]
async fn only_what_may_be_read_is_read_and_a_stop_ends_it() {
    let house = Fixture::new();
    std::fs::write(house.top.path().join("outside/secret.csv"), "a,b\n1,2\n").expect("a file");
    std::fs::write(house.top.path().join("skills/weather/t.csv"), "a,b\n1,2\n").expect("a file");
    let refused = read(&house, json!({"path": "../outside/secret.csv"})).await.expect_err("outside");
    assert!(refused.contains("outside the folders"), "{refused}");
    assert!(read(&house, json!({"path": "skills/weather/t.csv"})).await.is_ok());
    house.put("a.csv", "a,b\n".repeat(200_000));
    house.ctx.cancel.cancel();
    let stopped = Spreadsheet::default().call(json!({"path": "a.csv"}), &house.ctx).await;
    assert!(matches!(stopped, Err(ToolError::Abort(_))), "{stopped:?}");
}

#[test]
fn other_agents_words_for_it_are_understood() {
    let tools = Registry::builtin(&Parts::default());
    let ready = tools.prepare("read_excel", r#"{"file_path": "a.xlsx", "sheet_name": "S", "cell_range": "A1:B2"}"#);
    assert_eq!(ready.expect("understood").args, json!({"path": "a.xlsx", "sheet": "S", "range": "A1:B2"}));
}
