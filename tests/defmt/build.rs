//! Links the test with defmt's section. defmt's own script would replace that of a hosted linker;
//! this one is inserted into it.
use std::{env, fs, path::PathBuf};

fn main() {
    let script = PathBuf::from(env::var("OUT_DIR").unwrap()).join("defmt-host.x");
    fs::write(
        &script,
        r#"
EXTERN(_defmt_acquire);
EXTERN(_defmt_release);
EXTERN(__defmt_default_timestamp);
EXTERN(__DEFMT_MARKER_TIMESTAMP_WAS_DEFINED);
PROVIDE(_defmt_timestamp = __defmt_default_timestamp);
PROVIDE(_defmt_panic = __defmt_default_panic);
SECTIONS
{
  .defmt 1 (INFO) :
  {
    . = 1;
    *(.defmt.prim.*);
    __DEFMT_MARKER_TRACE_START = .;
    *(.defmt.trace.*);
    __DEFMT_MARKER_TRACE_END = .;
    __DEFMT_MARKER_DEBUG_START = .;
    *(.defmt.debug.*);
    __DEFMT_MARKER_DEBUG_END = .;
    __DEFMT_MARKER_INFO_START = .;
    *(.defmt.info.*);
    __DEFMT_MARKER_INFO_END = .;
    __DEFMT_MARKER_WARN_START = .;
    *(.defmt.warn.*);
    __DEFMT_MARKER_WARN_END = .;
    __DEFMT_MARKER_ERROR_START = .;
    *(.defmt.error.*);
    __DEFMT_MARKER_ERROR_END = .;
    *(.defmt.*);
    __DEFMT_MARKER_END = .;
    KEEP(*(.defmt.end .defmt.end.*));
  }
}
INSERT AFTER .comment;
"#,
    )
    .unwrap();
    println!("cargo:rustc-link-arg-tests=-Wl,-T,{}", script.display());
    // The indices of format strings are 16 bits wide: they must not move.
    println!("cargo:rustc-link-arg-tests=-no-pie");
}
