/* Prints what libpfm4 encodes, as tests/data/libpfm4.csv keeps it: for each event and each of its unit masks
 * the event select, without the mode, interrupt and enable bits, and the value of the MSR that goes with it.
 * Neither counters nor the processor itself are needed.
 *
 *   apt-get install libpfm4-dev
 *   cc -O2 -o libpfm4_dump pmu-events/tools/libpfm4_dump.c -lpfm
 *   LIBPFM_ENCODE_INACTIVE=1 ./libpfm4_dump > tests/data/libpfm4.csv
 *   LIBPFM_ENCODE_INACTIVE=1 ./libpfm4_dump uncore > tests/data/libpfm4_uncore.csv
 *
 * With `uncore`, the same of uncore units: event number and unit mask alone.
 */
#include <inttypes.h>
#include <perfmon/pfmlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const pmus[] = {
    "atom", "nhm", "nhm_ex", "wsm", "wsm_dp", "snb", "snb_ep", "ivb", "ivb_ep", "hsw", "hsw_ep", "bdw",
    "bdw_ep", "skl", "skx", "clx", "slm", "glm", "tmt", "knl", "icl", "icx", "spr",
    "amd64_k8_revg", "amd64_fam10h_istanbul", "amd64_fam11h_turion", "amd64_fam12h_llano",
    "amd64_fam14h_bobcat", "amd64_fam15h_interlagos", "amd64_fam16h", "amd64_fam17h_zen1",
    "amd64_fam17h_zen2", "amd64_fam19h_zen3", "amd64_fam19h_zen4",
};

/* The first of each kind of unit. */
static const char *const units[] = {
    "ivbep_unc_cbo0", "ivbep_unc_ha0", "ivbep_unc_imc0", "ivbep_unc_pcu", "ivbep_unc_qpi0", "ivbep_unc_r2pcie",
    "ivbep_unc_r3qpi0", "ivbep_unc_irp", "hswep_unc_cbo0", "hswep_unc_ha0", "hswep_unc_imc0", "hswep_unc_pcu",
    "hswep_unc_qpi0", "hswep_unc_r2pcie", "hswep_unc_r3qpi0", "hswep_unc_irp", "hswep_unc_sbo0", "skx_unc_imc0",
    "skx_unc_irp", "skx_unc_upi0",
    "knl_unc_cha0", "knl_unc_edc_eclk0", "knl_unc_edc_uclk0", "knl_unc_imc0", "knl_unc_m2pcie",
};

static uint64_t of_the_event = ~0ull;

/* USR, OS, INT and EN. */
#define NOT_THE_EVENT 0x530000ull

static void print(const char *event, const char *unit_mask, const char *text)
{
    pfm_pmu_encode_arg_t encoded;
    memset(&encoded, 0, sizeof encoded);
    encoded.size = sizeof encoded;
    if (pfm_get_os_event_encoding(text, PFM_PLM0 | PFM_PLM3, PFM_OS_NONE, &encoded) != PFM_SUCCESS)
        return;
    printf("%s%s%s,0x%" PRIX64, event, unit_mask ? ":" : "", unit_mask ? unit_mask : "",
           (uint64_t)(encoded.codes[0] & ~NOT_THE_EVENT & of_the_event));
    if (encoded.count > 1 && of_the_event == ~0ull)
        printf(",0x%" PRIX64, encoded.codes[1]);
    putchar('\n');
    free(encoded.codes);
}

static void dump(const pfm_pmu_info_t *pmu)
{
    printf("# %s\n", pmu->name);
    for (int place = pmu->first_event; place != -1; place = pfm_get_event_next(place)) {
        pfm_event_info_t event;
        char text[512];
        int masks = 0;
        memset(&event, 0, sizeof event);
        event.size = sizeof event;
        if (pfm_get_event_info(place, PFM_OS_NONE, &event) != PFM_SUCCESS)
            continue;
        for (int at = 0; at < event.nattrs; at++) {
            pfm_event_attr_info_t attribute;
            memset(&attribute, 0, sizeof attribute);
            attribute.size = sizeof attribute;
            if (pfm_get_event_attr_info(place, at, PFM_OS_NONE, &attribute) != PFM_SUCCESS ||
                attribute.type != PFM_ATTR_UMASK)
                continue;
            masks++;
            snprintf(text, sizeof text, "%s::%s:%s", pmu->name, event.name, attribute.name);
            print(event.name, attribute.name, text);
        }
        if (!masks) {
            snprintf(text, sizeof text, "%s::%s", pmu->name, event.name);
            print(event.name, NULL, text);
        }
    }
}

int main(int arguments, char **argument)
{
    const char *const *names = pmus;
    size_t count = sizeof pmus / sizeof *pmus;
    int version = pfm_get_version();
    if (pfm_initialize() != PFM_SUCCESS)
        return 1;
    printf("# libpfm4 (API %d.%d; Debian package libpfm4 4.13.0-1), by pmu-events/tools/libpfm4_dump.c\n",
           PFM_MAJ_VERSION(version), PFM_MIN_VERSION(version));
    if (arguments > 1 && !strcmp(argument[1], "uncore")) {
        names = units;
        count = sizeof units / sizeof *units;
        of_the_event = 0xFFFF;
    }
    for (size_t place = 0; place < count; place++)
        for (int number = 0; number < PFM_PMU_MAX; number++) {
            pfm_pmu_info_t pmu;
            memset(&pmu, 0, sizeof pmu);
            pmu.size = sizeof pmu;
            if (pfm_get_pmu_info(number, &pmu) == PFM_SUCCESS && !strcmp(pmu.name, names[place]))
                dump(&pmu);
        }
    return 0;
}
