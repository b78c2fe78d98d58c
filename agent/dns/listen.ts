/** The addresses that the DNS server listens on: those that were named, or those of the host as they come and go. */
import type { Logger } from 'pino';
import { isUnspecified } from '../../api/addresses.ts';
import { IPVS_DEVICE } from '../../api/vip-device.ts';
import type { DnsOptions } from '../../config/dns-settings.ts';
import { expandUnspecified, ListenAddresses } from '../../dns/listen-addresses.ts';
import type { DnsServer } from '../../dns/server.ts';
import type { AddressWatch } from '../../netlink/route/address-watch.ts';
import { UserError } from '../../process/errors.ts';

/** What failed and what to do. */
export function cannotListen(address: string, port: number, error: Error): string {
  const code = 'code' in error ? String(error.code) : error.message;
  return `cannot listen on ${address}, port ${port} (${code}): ${listenAdvice(code, port)}`;
}

function listenAdvice(code: string, port: number): string {
  switch (code) {
    case 'EACCES':
      return 'ports below 1024 need CAP_NET_BIND_SERVICE: run it as root, in a pod with NET_BIND_SERVICE in securityContext.capabilities.add, or choose another --port';
    case 'EADDRINUSE':
      return `another process has this port (\`ss -lnp sport = :${port}\` shows it); end it, or choose another --port or --bind-address`;
    case 'EADDRNOTAVAIL':
      return 'it is no address of this host; choose another --bind-address';
    default:
      return 'choose another --port or --bind-address';
  }
}

/**
 * Listens from now on. Where `0.0.0.0` or `::` is asked for, the addresses of the host are followed.
 * @throws UserError when an address that was named cannot be listened on, or none at all.
 */
export async function listen(
  { bindAddress, port }: DnsOptions,
  server: DnsServer,
  log: Logger,
): Promise<AddressWatch> {
  const wanted = new ListenAddresses({
    server,
    onFailure: (address, error) =>
      log.warn({ address, port, err: error }, 'cannot listen; trying again'),
    onRecovery: (address) => log.info({ address, port }, 'listening now'),
  });
  let watch: AddressWatch | undefined;
  if (!bindAddress.some(isUnspecified)) await wanted.set(bindAddress);
  else {
    let first: Promise<void> | undefined;
    const { watchAddresses } = await import('../../netlink/route/address-watch.ts');
    watch = await watchAddresses(
      (ofHost) => {
        const addresses = expandUnspecified(
          bindAddress,
          ofHost.map(({ address }) => address),
        );
        const settled = wanted.set(addresses);
        first ??= settled;
      },
      {
        // VIPs that another mode's agent bound are no addresses of the host.
        ignoredLink: IPVS_DEVICE,
        onError: (error) => log.error({ err: error }, 'cannot read the addresses of this host'),
      },
    );
    await first;
  }
  const failed = [...wanted.failing];
  const named = failed.find(([address]) => bindAddress.includes(address));
  const [address, error] = named ?? failed[0] ?? ['any address', undefined];
  if (named !== undefined || server.addresses.length === 0) {
    const message =
      error === undefined
        ? `--bind-address=${bindAddress.join()}: this host has no address to listen on`
        : cannotListen(address, port, error);
    throw new UserError(message, { cause: error });
  }
  log.info({ addresses: server.addresses, port }, 'listening');
  return {
    close: async () => {
      wanted.close();
      await watch?.close();
    },
  };
}
