//! The sources of the Amd64 interface: its table in the original release of Windows 10.
//!
//! The events are those of the Hammer processors (BKDG for AMD Athlon 64 and AMD Opteron, ch. 10). On later families,
//! many of the event numbers select another event, or no event.

use pmu_core::profile::{ProfileSource, SourceIndex, SourceTable};
use pmu_core::registers::EventSelect;

use crate::registers::PerfCtl;

/// Returns the select of an event at every privilege level.
const fn event(number: u8, unit_mask: u8) -> EventSelect {
    PerfCtl::new()
        .with_event_low(number)
        .with_unit_mask(unit_mask)
        .with_user(true)
        .with_os(true)
        .select()
}

macro_rules! table {
    // value, documented name, event, unit mask; = the specific source of the same event, where the
    // row is a general one; as Windows' string, where it is not the name without its prefix
    ($($value:literal $name:literal $event:literal $unit_mask:literal
       $(= $canonical:literal)? $(as $windows:literal)?;)*) => {
        /// The profile sources of the Amd64 interface, in the order of their `KPROFILE_SOURCE` values.
        ///
        /// The source `ProfileTime` runs on a timer, not on a counter. In this table, the source has the event select
        /// of unhalted cycles, but no counter uses this event select.
        pub static SOURCES: [ProfileSource; 176] = [$(
            ProfileSource::new($value, $name, event($event, $unit_mask))
                $(.another_name_of($canonical))?
                $(.spelled($windows))?
        ),*];
    };
}

table! {
    0x00 "ProfileTime" 0x76 0x00 as "Timer";
    0x02 "ProfileTotalIssues" 0xC0 0x00 = 0x68;
    0x06 "ProfileBranchInstructions" 0xC2 0x00 = 0x6A;
    0x08 "ProfileDcacheMisses" 0x41 0x00 = 0x32;
    0x09 "ProfileIcacheMisses" 0x81 0x00 = 0x5F;
    0x0B "ProfileBranchMispredictions" 0xC3 0x00 = 0x6B;
    0x0D "ProfileFpInstructions" 0xCB 0x0F = 0x73;
    0x14 "ProfileIcacheIssues" 0x80 0x00 = 0x5E;
    0x15 "ProfileDcacheAccesses" 0x40 0x00 = 0x31;
    0x19 "ProfileFPDispatchedFPUOps" 0x00 0x3F;
    0x1A "ProfileFPDispatchedFPUOpsAddExcludeJunk" 0x00 0x01;
    0x1B "ProfileFPDispatchedFPUOpsMulExcludeJunk" 0x00 0x02;
    0x1C "ProfileFPDispatchedFPUOpsStoreExcludeJunk" 0x00 0x04;
    0x1D "ProfileFPDispatchedFPUOpsAddJunk" 0x00 0x08;
    0x1E "ProfileFPDispatchedFPUOpsMulJunk" 0x00 0x10;
    0x1F "ProfileFPDispatchedFPUOpsStoreJunk" 0x00 0x20;
    0x20 "ProfileFPCyclesNoFPUOpsRetired" 0x01 0x00;
    0x21 "ProfileFPDispatchedFPUOpsWithFastFlag" 0x02 0x00 as "FPDispathedFPUOpsWithFastFlag";
    0x22 "ProfileLSSegmentRegisterLoad" 0x20 0x7F;
    0x23 "ProfileLSSegmentRegisterLoadES" 0x20 0x01;
    0x24 "ProfileLSSegmentRegisterLoadCS" 0x20 0x02;
    0x25 "ProfileLSSegmentRegisterLoadSS" 0x20 0x04;
    0x26 "ProfileLSSegmentRegisterLoadDS" 0x20 0x08;
    0x27 "ProfileLSSegmentRegisterLoadFS" 0x20 0x10;
    0x28 "ProfileLSSegmentRegisterLoadGS" 0x20 0x20;
    0x29 "ProfileLSSegmentRegisterLoadHS" 0x20 0x40;
    0x2A "ProfileLSResyncBySelfModifyingCode" 0x21 0x00;
    0x2B "ProfileLSResyncBySnoop" 0x22 0x00;
    0x2C "ProfileLSBuffer2Full" 0x23 0x00;
    0x2D "ProfileLSLockedOperation" 0x24 0x00;
    0x2E "ProfileLSLateCancelOperation" 0x25 0x00;
    0x2F "ProfileLSRetiredCFLUSH" 0x26 0x00;
    0x30 "ProfileLSRetiredCPUID" 0x27 0x00;
    0x31 "ProfileDCAccess" 0x40 0x00;
    0x32 "ProfileDCMiss" 0x41 0x00;
    0x33 "ProfileDCRefillFromL2" 0x42 0x1F;
    0x34 "ProfileDCRefillFromL2Invalid" 0x42 0x01;
    0x35 "ProfileDCRefillFromL2Shared" 0x42 0x02;
    0x36 "ProfileDCRefillFromL2Exclusive" 0x42 0x04;
    0x37 "ProfileDCRefillFromL2Owner" 0x42 0x08;
    0x38 "ProfileDCRefillFromL2Modified" 0x42 0x10;
    0x39 "ProfileDCRefillFromSystem" 0x43 0x1F;
    0x3A "ProfileDCRefillFromSystemInvalid" 0x43 0x01;
    0x3B "ProfileDCRefillFromSystemShared" 0x43 0x02;
    0x3C "ProfileDCRefillFromSystemExclusive" 0x43 0x04;
    0x3D "ProfileDCRefillFromSystemOwner" 0x43 0x08;
    0x3E "ProfileDCRefillFromSystemModified" 0x43 0x10;
    0x3F "ProfileDCRefillCopyBack" 0x44 0x1F;
    0x40 "ProfileDCRefillCopyBackInvalid" 0x44 0x01;
    0x41 "ProfileDCRefillCopyBackShared" 0x44 0x02;
    0x42 "ProfileDCRefillCopyBackExclusive" 0x44 0x04;
    0x43 "ProfileDCRefillCopyBackOwner" 0x44 0x08;
    0x44 "ProfileDCRefillCopyBackModified" 0x44 0x10;
    0x45 "ProfileDCL1DTLBMissL2DTLBHit" 0x45 0x07;
    0x46 "ProfileDCL1DTLBMissL2DTLBMiss" 0x46 0x07;
    0x47 "ProfileDCMisaligndDataReference" 0x47 0x00 as "DCMisalignedDataReference";
    0x48 "ProfileDCLateCancelOfAccess" 0x48 0x00 as "DCLateCancelOfAnAccess";
    0x49 "ProfileDCEarlyCancelOfAccess" 0x49 0x00 as "DCEarlyCancelOfAnAccess";
    0x4A "ProfileDCOneBitECCError" 0x4A 0x03;
    0x4B "ProfileDCOneBitECCErrorScrubberError" 0x4A 0x01;
    0x4C "ProfileDCOneBitECCErrorPiggybackScrubberError" 0x4A 0x02;
    0x4D "ProfileDCDispatchedPrefetchInstructions" 0x4B 0x07;
    0x4E "ProfileDCDispatchedPrefetchInstructionsLoad" 0x4B 0x01;
    0x4F "ProfileDCDispatchedPrefetchInstructionsStore" 0x4B 0x02;
    0x50 "ProfileDCDispatchedPrefetchInstructionsNTA" 0x4B 0x04;
    0x51 "ProfileBUInternalL2Request" 0x7D 0x1F;
    0x52 "ProfileBUInternalL2RequestICFill" 0x7D 0x01;
    0x53 "ProfileBUInternalL2RequestDCFill" 0x7D 0x02;
    0x54 "ProfileBUInternalL2RequestTLBReload" 0x7D 0x04;
    0x55 "ProfileBUInternalL2RequestTagSnoopRequest" 0x7D 0x08;
    0x56 "ProfileBUInternalL2RequestCancelledRequest" 0x7D 0x10;
    0x57 "ProfileBUFillRequestMissedInL2" 0x7E 0x07;
    0x58 "ProfileBUFillRequestMissedInL2ICFill" 0x7E 0x01;
    0x59 "ProfileBUFillRequestMissedInL2DCFill" 0x7E 0x02;
    0x5A "ProfileBUFillRequestMissedInL2TLBLoad" 0x7E 0x04;
    0x5B "ProfileBUFillIntoL2" 0x7F 0x03;
    0x5C "ProfileBUFillIntoL2DirtyL2Victim" 0x7F 0x01;
    0x5D "ProfileBUFillIntoL2VictimFromL1" 0x7F 0x02;
    0x5E "ProfileICFetch" 0x80 0x00;
    0x5F "ProfileICMiss" 0x81 0x00;
    0x60 "ProfileICRefillFromL2" 0x82 0x00;
    0x61 "ProfileICRefillFromSystem" 0x83 0x00;
    0x62 "ProfileICL1TLBMissL2TLBHit" 0x84 0x00;
    0x63 "ProfileICL1TLBMissL2TLBMiss" 0x85 0x03;
    0x64 "ProfileICResyncBySnoop" 0x86 0x00;
    0x65 "ProfileICInstructionFetchStall" 0x87 0x00;
    0x66 "ProfileICReturnStackHit" 0x88 0x00;
    0x67 "ProfileICReturnStackOverflow" 0x89 0x00;
    0x68 "ProfileFRRetiredx86Instructions" 0xC0 0x00;
    0x69 "ProfileFRRetireduops" 0xC1 0x00;
    0x6A "ProfileFRRetiredBranches" 0xC2 0x00;
    0x6B "ProfileFRRetiredBranchesMispredicted" 0xC3 0x00;
    0x6C "ProfileFRRetiredTakenBranches" 0xC4 0x00;
    0x6D "ProfileFRRetiredTakenBranchesMispredicted" 0xC5 0x00;
    0x6E "ProfileFRRetiredFarControlTransfers" 0xC6 0x00;
    0x6F "ProfileFRRetiredResyncsNonControlTransferBranches" 0xC7 0x00;
    0x70 "ProfileFRRetiredNearReturns" 0xC8 0x00;
    0x71 "ProfileFRRetiredNearReturnsMispredicted" 0xC9 0x00;
    0x72 "ProfileFRRetiredTakenBranchMispredictedByAddressMiscompare" 0xCA 0x00 as "FRRetiredTakenBranchesMispredictedByAddressMiscompare";
    0x73 "ProfileFRRetiredFPUInstructions" 0xCB 0x0F;
    0x74 "ProfileFRRetiredFPUInstructionsx87" 0xCB 0x01;
    0x75 "ProfileFRRetiredFPUInstructionsMMXAnd3DNow" 0xCB 0x02;
    0x76 "ProfileFRRetiredFPUInstructionsPackedSSEAndSSE2" 0xCB 0x04;
    0x77 "ProfileFRRetiredFPUInstructionsScalarSSEAndSSE2" 0xCB 0x08;
    0x78 "ProfileFRRetiredFastpathDoubleOpInstructions" 0xCC 0x07;
    0x79 "ProfileFRRetiredFastpathDoubleOpInstructionsLowOpInPosition0" 0xCC 0x01;
    0x7A "ProfileFRRetiredFastpathDoubleOpInstructionsLowOpInPosition1" 0xCC 0x02;
    0x7B "ProfileFRRetiredFastpathDoubleOpInstructionsLowOpInPosition2" 0xCC 0x04;
    0x7C "ProfileFRInterruptsMaskedCycles" 0xCD 0x00;
    0x7D "ProfileFRInterruptsMaskedWhilePendingCycles" 0xCE 0x00;
    0x7E "ProfileFRTakenHardwareInterrupts" 0xCF 0x00;
    0x7F "ProfileFRNothingToDispatch" 0xD0 0x00;
    0x80 "ProfileFRDispatchStalls" 0xD1 0x00;
    0x81 "ProfileFRDispatchStallsFromBranchAbortToRetire" 0xD2 0x00;
    0x82 "ProfileFRDispatchStallsForSerialization" 0xD3 0x00;
    0x83 "ProfileFRDispachStallsForSegmentLoad" 0xD4 0x00 as "FRDispatchStallsForSegmentLoad";
    0x84 "ProfileFRDispatchStallsWhenReorderBufferFull" 0xD5 0x00;
    0x85 "ProfileFRDispatchStallsWhenReservationStationsFull" 0xD6 0x00;
    0x86 "ProfileFRDispatchStallsWhenFPUFull" 0xD7 0x00;
    0x87 "ProfileFRDispatchStallsWhenLSFull" 0xD8 0x00;
    0x88 "ProfileFRDispatchStallsWhenWaitingForAllQuiet" 0xD9 0x00;
    0x89 "ProfileFRDispatchStallsWhenFarControlOrResyncBranchPending" 0xDA 0x00;
    0x8A "ProfileFRFPUExceptions" 0xDB 0x0F;
    0x8B "ProfileFRFPUExcpetionsx87ReclassMicroFaults" 0xDB 0x01 as "FRFPUExceptionsx87ReclassMicroFaults";
    0x8C "ProfileFRFPUExceptionsSSERetypeMicroFaults" 0xDB 0x02;
    0x8D "ProfileFRFPUExceptionsSSEReclassMicroFaults" 0xDB 0x04;
    0x8E "ProfileFRFPUExceptionsSSEAndx87MicroTraps" 0xDB 0x08;
    0x8F "ProfileFRNumberOfBreakPointsForDR0" 0xDC 0x00;
    0x90 "ProfileFRNumberOfBreakPointsForDR1" 0xDD 0x00;
    0x91 "ProfileFRNumberOfBreakPointsForDR2" 0xDE 0x00;
    0x92 "ProfileFRNumberOfBreakPointsForDR3" 0xDF 0x00;
    0x93 "ProfileNBMemoryControllerPageAccessEvent" 0xE0 0x07;
    0x94 "ProfileNBMemoryControllerPageAccessEventPageHit" 0xE0 0x01;
    0x95 "ProfileNBMemoryControllerPageAccessEventPageMiss" 0xE0 0x02;
    0x96 "ProfileNBMemoryControllerPageAccessEventPageConflict" 0xE0 0x04;
    0x97 "ProfileNBMemoryControllerPageTableOverflow" 0xE1 0x00;
    0x98 "ProfileNBMemoryControllerDRAMCommandSlotsMissed" 0xE2 0x00;
    0x99 "ProfileNBMemoryControllerTurnAround" 0xE3 0x07;
    0x9A "ProfileNBMemoryControllerTurnAroundDIMM" 0xE3 0x01;
    0x9B "ProfileNBMemoryControllerTurnAroundReadToWrite" 0xE3 0x02;
    0x9C "ProfileNBMemoryControllerTurnAroundWriteToRead" 0xE3 0x04;
    0x9D "ProfileNBMemoryControllerBypassCounter" 0xE4 0x0F;
    0x9E "ProfileNBMemoryControllerBypassCounterHighPriority" 0xE4 0x01;
    0x9F "ProfileNBMemoryControllerBypassCounterLowPriority" 0xE4 0x02;
    0xA0 "ProfileNBMemoryControllerBypassCounterDRAMControllerInterface" 0xE4 0x04;
    0xA1 "ProfileNBMemoryControllerBypassCounterDRAMControllerQueue" 0xE4 0x08;
    0xA2 "ProfileNBSizedCommands" 0xEB 0x7F;
    0xA3 "ProfileNBSizedCommandsNonPostWrSzByte" 0xEB 0x01;
    0xA4 "ProfileNBSizedCommandsNonPostWrSzDword" 0xEB 0x02;
    0xA5 "ProfileNBSizedCommandsWrSzByte" 0xEB 0x04;
    0xA6 "ProfileNBSizedCommandsWrSzDword" 0xEB 0x08;
    0xA7 "ProfileNBSizedCommandsRdSzByte" 0xEB 0x10;
    0xA8 "ProfileNBSizedCommandsRdSzDword" 0xEB 0x20;
    0xA9 "ProfileNBSizedCommandsRdModWr" 0xEB 0x40;
    0xAA "ProfileNBProbeResult" 0xEC 0x0F;
    0xAB "ProfileNBProbeResultMiss" 0xEC 0x01;
    0xAC "ProfileNBProbeResultHit" 0xEC 0x02;
    0xAD "ProfileNBProbeResultHitDirtyWithoutMemoryCanceL" 0xEC 0x04 as "NBProbeResultHitDirtyWithoutMemoryCancel";
    0xAE "ProfileNBProbeResultHitDirtyWithMemoryCancel" 0xEC 0x08;
    0xAF "ProfileNBHyperTransportBus0Bandwidth" 0xF6 0x0F;
    0xB0 "ProfileNBHyperTransportBus0BandwidthCommandSent" 0xF6 0x01;
    0xB1 "ProfileNBHyperTransportBus0BandwidthDataSent" 0xF6 0x02;
    0xB2 "ProfileNBHyperTransportBus0BandwidthBufferReleaseSent" 0xF6 0x04;
    0xB3 "ProfileNBHyperTransportBug0BandwidthNopSent" 0xF6 0x08 as "NBHyperTransportBus0BandwidthNopSent";
    0xB4 "ProfileNBHyperTransportBus1Bandwidth" 0xF7 0x0F;
    0xB5 "ProfileNBHyperTransportBus1BandwidthCommandSent" 0xF7 0x01;
    0xB6 "ProfileNBHyperTransportBus1BandwidthDataSent" 0xF7 0x02;
    0xB7 "ProfileNBHyperTransportBus1BandwidthBufferReleaseSent" 0xF7 0x04;
    0xB8 "ProfileNBHyperTransportBus1BandwidthNopSent" 0xF7 0x08;
    0xB9 "ProfileNBHyperTransportBus2Bandwidth" 0xF8 0x0F;
    0xBA "ProfileNBHyperTransportBus2BandwidthCommandSent" 0xF8 0x01;
    0xBB "ProfileNBHyperTransportBus2BandwidthDataSent" 0xF8 0x02;
    0xBC "ProfileNBHyperTransportBus2BandwidthBufferReleaseSent" 0xF8 0x04;
    0xBD "ProfileNBHyperTransportBus2BandwidthNopSen" 0xF8 0x08 as "NBHyperTransportBus2BandwidthNopSent";
    0xBE "ProfileBUCleanToDirty" 0x63 0x10;
    0xBF "ProfileBUSharedToDirty" 0x63 0x20;
}

static INDEX: SourceIndex<512> = SourceIndex::new(&SOURCES);

/// [`SOURCES`], indexed by value and name.
pub(crate) static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);
