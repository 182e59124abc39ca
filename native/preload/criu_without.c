/*
 * libwherry-criu-without.so stands in for libgnutls and libnftables, which CRIU is linked with and no move uses: its connections
 * are the caller's, and the network is held by the caller. With all that these two need they are 15 of CRIU's 23 libraries. A restored process
 * is a copy of CRIU: it copies each mapping, lists it, and unmaps it again.
 *
 * A function that is called all the same fails. That of nftables says that there is a context: CRIU asks so what the kernel
 * can do, when it has not kept the answer of another time, and goes on when its commands fail.
 */
#include <stddef.h>

enum { GNUTLS_E_UNIMPLEMENTED_FEATURE = -1250 };

#define FAILS(function)                                                                                                                    \
    int function(void);                                                                                                                    \
    int function(void)                                                                                                                     \
    {                                                                                                                                      \
        return GNUTLS_E_UNIMPLEMENTED_FEATURE;                                                                                             \
    }
#define DOES_NOTHING(function)                                                                                                             \
    void function(void);                                                                                                                   \
    void function(void)                                                                                                                    \
    {                                                                                                                                      \
    }

FAILS(gnutls_bye)
FAILS(gnutls_certificate_allocate_credentials)
FAILS(gnutls_certificate_set_x509_crl_file)
FAILS(gnutls_certificate_set_x509_key_file)
FAILS(gnutls_certificate_set_x509_system_trust)
FAILS(gnutls_certificate_set_x509_trust_file)
FAILS(gnutls_certificate_type_get)
FAILS(gnutls_certificate_verification_status_print)
FAILS(gnutls_certificate_verify_peers3)
FAILS(gnutls_credentials_set)
FAILS(gnutls_error_is_fatal)
FAILS(gnutls_handshake)
FAILS(gnutls_init)
FAILS(gnutls_record_recv)
FAILS(gnutls_record_recv_packet)
FAILS(gnutls_record_send)
FAILS(gnutls_set_default_priority)
DOES_NOTHING(gnutls_certificate_free_credentials)
DOES_NOTHING(gnutls_certificate_send_x509_rdn_sequence)
DOES_NOTHING(gnutls_certificate_server_set_request)
DOES_NOTHING(gnutls_deinit)
DOES_NOTHING(gnutls_packet_deinit)
DOES_NOTHING(gnutls_packet_get)
DOES_NOTHING(gnutls_transport_set_ptr)
DOES_NOTHING(gnutls_transport_set_pull_function)
DOES_NOTHING(gnutls_transport_set_push_function)

size_t gnutls_record_check_pending(void);
size_t gnutls_record_check_pending(void)
{
    return 0;
}

const char *gnutls_strerror(int error);
const char *gnutls_strerror(int error)
{
    (void)error;
    return "there is no TLS in a move";
}

void (*gnutls_free)(void *);

FAILS(nft_ctx_buffer_error)
FAILS(nft_ctx_buffer_output)
FAILS(nft_run_cmd_from_buffer)
DOES_NOTHING(nft_ctx_free)
DOES_NOTHING(nft_ctx_set_error)
DOES_NOTHING(nft_ctx_set_output)

void *nft_ctx_new(unsigned int flags);
void *nft_ctx_new(unsigned int flags)
{
    static char context;

    (void)flags;
    return &context;
}

const char *nft_ctx_get_error_buffer(void);
const char *nft_ctx_get_error_buffer(void)
{
    return "there are no nftables in a move";
}
