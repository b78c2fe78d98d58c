/** What a failed request to the API server means, and what to do about it, in words for operators. */

/** Which server was asked. */
export interface RequestTarget {
  /** Its URL. */
  readonly server: string;
  readonly proxyUrl?: string | undefined;
}

/** What was asked for. */
export interface RequestSummary {
  readonly method: string;
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
}

/** An error as Node has it. */
interface SystemError extends Error {
  readonly code?: string;
  /** Of the server, when it is its certificate that is wrong. */
  readonly cert?: { readonly subjectaltname?: string };
}

interface ConnectionReason {
  /** Of Node, OpenSSL or getaddrinfo. */
  readonly codes: RegExp;
  /** For codes that mean several things. */
  readonly message?: RegExp;
  /** It is the way to the server that failed: with a proxy, that to the proxy. */
  readonly isFirstHop?: boolean;
  readonly explain: (error: SystemError, url: URL, check: string) => string;
}

const CHECK_SERVER = 'check the server of the kubeconfig';
const CHECK_PROXY = 'check the proxy-url of the kubeconfig';

const CONNECTION_REASONS: readonly ConnectionReason[] = [
  {
    codes: /^ECONNREFUSED$/,
    isFirstHop: true,
    explain: (_error, _url, check) =>
      `refuses connections: nothing listens there, or a firewall rejects them; ${check}, and whether it runs`,
  },
  {
    codes: /^(ECONNRESET|EPIPE|ECONNABORTED)$/,
    explain: () =>
      'closed the connection: it is being restarted, or a load balancer or proxy in between ended it',
  },
  {
    codes: /^ETIMEDOUT$/,
    isFirstHop: true,
    explain: ({ message }) =>
      `does not answer (${message}): check routes, firewalls and network policies between the node and this address`,
  },
  {
    codes: /^(EHOSTUNREACH|ENETUNREACH|EHOSTDOWN|ENETDOWN|EADDRNOTAVAIL)$/,
    isFirstHop: true,
    explain: (_error, _url, check) =>
      `cannot be reached: the node has no route to this address; ${check}`,
  },
  {
    codes: /^ENOTFOUND$/,
    isFirstHop: true,
    explain: (_error, { hostname }, check) =>
      `cannot be found: DNS does not know the name ${hostname}; ${check}`,
  },
  {
    codes: /^EAI_/,
    isFirstHop: true,
    explain: (_error, { hostname }) =>
      `cannot be found: no DNS server answers for the name ${hostname}; check resolv.conf of the node`,
  },
  {
    codes:
      /^(UNABLE_TO_VERIFY_LEAF_SIGNATURE|UNABLE_TO_GET_ISSUER_CERT(_LOCALLY)?|SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT|CERT_UNTRUSTED|CERT_SIGNATURE_FAILURE|INVALID_CA)$/,
    explain: () =>
      'has a certificate of an authority that is not trusted here: the certificate-authority of the kubeconfig must be that of this cluster',
  },
  {
    codes: /^ERR_TLS_CERT_ALTNAME_INVALID$/,
    explain: ({ cert }, { hostname }) =>
      `has a certificate that is not for the name asked for: it is for ${cert?.subjectaltname ?? 'no name'}; use one of these in the server of the kubeconfig instead of ${hostname}, or as tls-server-name`,
  },
  {
    codes: /^CERT_HAS_EXPIRED$/,
    explain: () => 'has a certificate that has expired: renew it, or correct the clock of the node',
  },
  {
    codes: /^CERT_NOT_YET_VALID$/,
    explain: () => 'has a certificate that is not valid yet: check the clock of the node',
  },
  {
    codes: /^ERR_OSSL_X509_KEY_VALUES_MISMATCH$/,
    explain: () => 'cannot be asked: client-key does not belong to client-certificate',
  },
  {
    codes: /^ERR_OSSL_(UNSUPPORTED|PEM_.*|ASN1_.*)$/,
    explain: () =>
      'cannot be asked: client-certificate or client-key of the kubeconfig is not what its name says',
  },
  {
    codes: /ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA)/,
    explain: () =>
      'does not accept the client certificate: check client-certificate and client-key of the kubeconfig',
  },
  {
    codes: /^(EPROTO|ERR_SSL_.*)$/,
    message: /wrong version number|packet length too long/,
    explain: () =>
      'does not speak TLS: the server of the kubeconfig must be http://, or another port',
  },
  {
    codes: /^(EPROTO|ERR_SSL_.*)$/,
    explain: ({ message }) => `cannot agree with the node on TLS (${opensslReason(message)})`,
  },
  {
    codes: /^HPE_/,
    explain: () => `does not speak HTTP; ${CHECK_SERVER}, and its port`,
  },
  {
    codes: /^ERR_PROXY_TUNNEL$/,
    isFirstHop: true,
    explain: (_error, _url, check) => `opens no way to the API server; ${check}`,
  },
  {
    codes: /^(EMFILE|ENFILE)$/,
    explain: () => 'cannot be asked: the node has too many open files',
  },
];

/**
 * Why a request failed that got no answer, or only a part of it.
 * @param target undefined for what failed before any server was asked.
 */
export function explainConnection(cause: unknown, target: RequestTarget | undefined): string {
  if (!(cause instanceof Error)) return String(cause);
  const error: SystemError = cause;
  const { code = '', message } = error;
  const reason = CONNECTION_REASONS.find(
    (each) => each.codes.test(code) && (each.message === undefined || each.message.test(message)),
  );
  if (target === undefined || reason === undefined) return stripNodeAdvice(message);
  const { server, proxyUrl } = target;
  const asked = reason.isFirstHop === true && proxyUrl ? proxyUrl : server;
  const subject = asked === server ? server : `the proxy ${asked}`;
  const check = asked === server ? CHECK_SERVER : CHECK_PROXY;
  return `${subject} ${reason.explain(error, new URL(asked), check)} (${code})`;
}

/**
 * What to do about an answer with an error; empty when the answer says enough.
 * @param body the answer's.
 */
export function statusAdvice(
  code: number,
  body: string,
  { method, path, query }: RequestSummary,
): string {
  if (code === 403 && body.includes('system:anonymous')) {
    return 'the API server did not accept the credentials, or there are none: check the token or client certificate of the kubeconfig, or of the service account';
  }
  if (code === 401) {
    return 'the credentials are not valid, or not any more: check the token or client certificate of the kubeconfig, or of the service account';
  }
  if (code === 403) {
    const { group, resource } = PATH.exec(path)?.groups ?? {};
    const verb = verbOf(method, query);
    const inGroup = group === undefined ? '' : ` of the API group ${group}`;
    return `this user needs the right to ${verb} ${resource}${inGroup}: apply rbac.yaml of deploy/base, deploy/network-policy or deploy/dns, and check the ClusterRoleBinding`;
  }
  return '';
}

/** What to do about an answer that is no `Status` of Kubernetes. */
export function nonStatusAdvice(code: number, text: string, location: string | undefined): string {
  if (/HTTP request to an HTTPS server/.test(text)) {
    return 'the server speaks TLS: the server of the kubeconfig must be https://';
  }
  if (code >= 300 && code < 400) {
    return `it points to ${location ?? 'elsewhere'}: ${CHECK_SERVER}`;
  }
  if (code === 404) return `it does not know this path; ${CHECK_SERVER}`;
  return `something else than an API server answers, such as a proxy; ${CHECK_SERVER}`;
}

/**
 * A cause without the advice that Node gives to those who run Node themselves: logs may have it in full.
 */
export function withoutNodeAdvice(cause: unknown): unknown {
  if (!(cause instanceof Error) || stripNodeAdvice(cause.message) === cause.message) return cause;
  const plain = new Error(stripNodeAdvice(cause.message));
  return 'code' in cause ? Object.assign(plain, { code: cause.code }) : plain;
}

const PATH = /^\/(?:api|apis\/(?<group>[^/]+))\/[^/]+\/(?:namespaces\/[^/]+\/)?(?<resource>[^/]+)/;

function verbOf(method: string, query: RequestSummary['query']): string {
  if (method === 'POST') return 'create';
  if (method === 'PATCH') return 'patch';
  return query.watch === 'true' ? 'watch' : 'list';
}

/** `wrong version number` of OpenSSL's line with addresses and file names. */
function opensslReason(message: string): string {
  return /:SSL routines:[^:]*:([^:]+)/.exec(message)?.[1] ?? message;
}

function stripNodeAdvice(message: string): string {
  return message.replace(/;? ?(if the root CA|try running Node).*$/s, '');
}
