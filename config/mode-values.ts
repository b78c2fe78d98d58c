/** Types that settings and proxy modes share, in a file that does not load the settings. */

/** The kernel interface of the iptables commands. */
export type IptablesVariant = 'nft' | 'legacy';
export const IPTABLES_VARIANTS: readonly IptablesVariant[] = ['nft', 'legacy'];

/** First and last packet mark (fwmark) that Portwide may assign; inclusive. */
export interface MarkRange {
  readonly first: number;
  readonly last: number;
}

/** How mode ipvs serves all-ports Services: IPVS fwmark services (KEP-2610, open question 1c), or iptables rules (1a). */
export type IpvsAllPortsMode = 'fwmark' | 'iptables';
