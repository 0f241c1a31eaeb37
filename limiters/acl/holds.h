/* No stream is held for a moment: the word that aclrtValueWait waits for is the card's, which the host cannot write
 * without another call. */
#ifndef HETERO_ACL_HOLDS_H
#define HETERO_ACL_HOLDS_H

#define ENGINE_HOLDS

#endif
