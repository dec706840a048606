//! An initial RAM disk that holds one program: Linux' `Documentation/driver-api/early-userspace/buffer-format.rst`,
//! of the format "newc".

/// Types and permissions of files, as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const DEVICE: u32 = 0o020_600;
const PROGRAM: u32 = 0o100_755;

/// Returns the archive in which `program` is `/init`, beside the console that it is started with, and an empty
/// `/proc`.
pub(crate) fn with_init(program: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    add(&mut archive, "dev", DIRECTORY, (0, 0), &[]);
    add(&mut archive, "dev/console", DEVICE, (5, 1), &[]);
    add(&mut archive, "proc", DIRECTORY, (0, 0), &[]);
    add(&mut archive, "init", PROGRAM, (0, 0), program);
    add(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    archive
}

/// Adds a header of eight hexadecimal digits per field, the name and the content, each padded to four bytes.
fn add(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
    let (major, minor) = device;
    // Each file has a number of its own; the same would make links of them.
    let number = archive.len() as u32;
    let (content_size, name_size) = (content.len() as u32, name.len() as u32 + 1);
    // Number, mode, owner, group, links, time, size, device, device of a device file, name's size, checksum.
    let fields = [number, mode, 0, 0, 1, 0, content_size, 0, 0, major, minor, name_size, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").into_bytes());
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `/proc` as `cpio -o -H newc` writes them, but for owner, time and the file's number; and the
    /// names in order, since a directory comes before what is in it.
    #[test]
    fn an_archive_is_as_cpio_writes_it() {
        let archive = with_init(b"\x7fELF!");
        let text = String::from_utf8_lossy(&archive);
        let at = |name: &str| text.find(name).unwrap();
        let names = ["dev\0", "dev/console\0", "proc\0", "init\0", "TRAILER!!!\0"].map(at);
        assert!(names.is_sorted());
        let header = &text[names[2] - 110..names[2]];
        assert_eq!(&header[..6], "070701");
        assert_eq!(&header[14..22], "000041ed");
        assert_eq!(&header[94..102], "00000005");
        // The console is character device 5, 1.
        let header = &text[names[1] - 110..names[1]];
        assert_eq!((&header[14..22], &header[78..94]), ("00002180", "0000000500000001"));
        // The program begins at a multiple of four, and so does the next entry.
        let header = &text[names[3] - 110..names[3]];
        assert_eq!((&header[14..22], &header[54..62]), ("000081ed", "00000005"));
        assert_eq!(&archive[names[3] + 6..names[3] + 14], b"\x7fELF!\0\0\0");
        for name in names {
            assert_eq!((name - 110) % 4, 0);
        }
        assert_eq!(archive.len() % 4, 0);
    }
}
