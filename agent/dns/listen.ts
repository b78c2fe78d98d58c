/** Makes the DNS server listen on the configured addresses, or on all addresses of the host as they change. */
import type { Logger } from 'pino';
import { isUnspecified } from '../../api/addresses.ts';
import { IPVS_DEVICE } from '../../api/vip-device.ts';
import type { DnsOptions } from '../../config/dns-settings.ts';
import { expandUnspecified, ListenAddresses } from '../../dns/listen-addresses.ts';
import type { DnsServer } from '../../dns/server.ts';
import type { AddressWatch } from '../../netlink/route/address-watch.ts';
import { UserError } from '../../process/errors.ts';

/** The error message for an address that cannot be bound, with advice. */
export function cannotListen(address: string, port: number, error: Error): string {
  const code = 'code' in error ? String(error.code) : error.message;
  return `cannot listen on ${address}, port ${port} (${code}): ${listenAdvice(code, port)}`;
}

function listenAdvice(code: string, port: number): string {
  switch (code) {
    case 'EACCES':
      return 'ports below 1024 need CAP_NET_BIND_SERVICE: run as root, add NET_BIND_SERVICE to securityContext.capabilities.add of the pod, or choose another --port';
    case 'EADDRINUSE':
      return `another process uses this port (\`ss -lnp sport = :${port}\` shows it); stop it, or choose another --port or --bind-address`;
    case 'EADDRNOTAVAIL':
      return 'not an address of this host; choose another --bind-address';
    default:
      return 'choose another --port or --bind-address';
  }
}

/**
 * Starts listening. For `0.0.0.0` and `::`, watches the addresses of the host.
 * @returns a handle whose `close` stops listening and watching.
 * @throws UserError if an explicit address cannot be bound, or if no address can be bound.
 */
export async function listen(
  { bindAddress, port }: DnsOptions,
  server: DnsServer,
  log: Logger,
): Promise<AddressWatch> {
  const listenAddresses = new ListenAddresses({
    server,
    onFailure: (address, error) =>
      log.warn({ address, port, err: error }, 'cannot listen; retrying'),
    onRecovery: (address) => log.info({ address, port }, 'listening after retry'),
  });
  let watch: AddressWatch | undefined;
  if (!bindAddress.some(isUnspecified)) await listenAddresses.set(bindAddress);
  else {
    let first: Promise<void> | undefined;
    const { watchAddresses } = await import('../../netlink/route/address-watch.ts');
    watch = await watchAddresses(
      (hostAddresses) => {
        const addresses = expandUnspecified(
          bindAddress,
          hostAddresses.map(({ address }) => address),
        );
        const listening = listenAddresses.set(addresses);
        first ??= listening;
      },
      {
        // VIPs that mode ipvs bound are not addresses of the host.
        ignoredLink: IPVS_DEVICE,
        onError: (error) => log.error({ err: error }, 'cannot read the addresses of this host'),
      },
    );
    await first;
  }
  const failed = [...listenAddresses.failing];
  const explicit = failed.find(([address]) => bindAddress.includes(address));
  const [address, error] = explicit ?? failed[0] ?? ['any address', undefined];
  if (explicit !== undefined || server.addresses.length === 0) {
    const message =
      error === undefined
        ? `--bind-address=${bindAddress.join()}: this host has no address to listen on`
        : cannotListen(address, port, error);
    throw new UserError(message, { cause: error });
  }
  log.info({ addresses: server.addresses, port }, 'listening');
  return {
    close: async () => {
      listenAddresses.close();
      await watch?.close();
    },
  };
}
