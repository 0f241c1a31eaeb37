/* A simulated libfmk_onnx_parser.so, which has no graph compiler: every step fails. The names are C++'s. */
#include "ascend_acl.h"

#define GRAPH_FAILED 0xffffffffu
#define FAILS(name)                                                                                                    \
    EXPORT uint32_t name(void)                                                                                         \
    {                                                                                                                  \
        return GRAPH_FAILED;                                                                                           \
    }

FAILS(_ZN2ge16aclgrphSaveModelEPKcRKNS_15ModelBufferDataE)
FAILS(
    _ZN2ge17aclgrphBuildModelERKNS_5GraphERKSt3mapINS_12AscendStringES4_St4lessIS4_ESaISt4pairIKS4_S4_EEERNS_15ModelBufferDataE)
FAILS(_ZN2ge20aclgrphBuildFinalizeEv)
FAILS(_ZN2ge22aclgrphBuildInitializeERSt3mapINS_12AscendStringES1_St4lessIS1_ESaISt4pairIKS1_S1_EEE)
FAILS(_ZN2ge23aclgrphParseONNXFromMemEPKcmRKSt3mapINS_12AscendStringES3_St4lessIS3_ESaISt4pairIKS3_S3_EEERNS_5GraphE)
FAILS(_ZN2ge5GraphC1EPKc)
FAILS(_ZN2ge12AscendStringC1EPKc)
FAILS(_ZNK2ge12AscendStringltERKS0_)
